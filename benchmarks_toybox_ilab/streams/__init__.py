"""Protocols, orders and the torch data set of a stream."""
