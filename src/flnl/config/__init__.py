"""The configuration: composed from ``conf/``, checked, identified, built into objects."""
