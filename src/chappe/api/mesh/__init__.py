"""Endpoints of the mesh, their subscribers, publishers and gateways."""
