"""Networks: the protocol, containers and layers, written once for every engine."""
