"""What reads finished runs, or starts them: comparison, tables, tuning, federation card, doctor, rerun."""
