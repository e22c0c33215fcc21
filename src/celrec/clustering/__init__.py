"""What makes CEL CEL: split methods, choice criteria, reassignment, schedule, split tree."""
