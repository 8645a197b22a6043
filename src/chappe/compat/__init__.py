"""Drop-in modules for the programming interfaces of other libraries."""
