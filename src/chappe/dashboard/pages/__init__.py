"""The pages, one module each. What comes from others is shown as text: in labels, tables and canvases, no markup."""
