"""Client, server, authority, the messages between them, and the ledger of these messages."""
