"""The judged result and its renderers. No torch in here: a report can be rendered on any machine."""
