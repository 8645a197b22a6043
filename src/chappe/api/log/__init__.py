"""Producers, consumers, stores, towers and forwarders."""
