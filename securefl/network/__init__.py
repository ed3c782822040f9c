"""Server, authority and clients as processes, over gRPC with certificates on both sides."""

import os

# Both are read when gRPC is loaded. It has words of its own for each stranger; ours are enough.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Suites of TLS 1.2 for a kind of key that nobody here has: what is left is TLS 1.3.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
