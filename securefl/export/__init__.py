"""A trained model in the forms in which others take it along: without this library."""
