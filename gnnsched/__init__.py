"""gnnsched: plans AllReduce on any network with one trained graph neural network."""

__version__ = "0.1.0"
