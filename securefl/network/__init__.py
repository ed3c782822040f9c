"""Server, authority and clients as processes, over TLS with certificates on both sides."""
