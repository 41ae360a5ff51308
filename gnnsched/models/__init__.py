"""The policy: encoder over servers, switches and in-flight flows, and the two heads of a decision."""
