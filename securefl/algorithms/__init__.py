"""One algorithm per file: FedAvg, FedTAN and its forward-only variant."""
