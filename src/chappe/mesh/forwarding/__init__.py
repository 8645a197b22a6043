"""The way of a message through an endpoint: in by a link, out to links and subscribers. No I/O."""
