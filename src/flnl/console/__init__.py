"""What commands say and how: lines, tables, progress, suggestions."""
