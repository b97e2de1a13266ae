"""The page of an audit: ``index.html`` and its shards, which open from disk without a server or a network."""

from flnl.audit.page.writing import write_page

__all__ = ["write_page"]
