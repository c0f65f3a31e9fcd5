"""What people see of runs: `limba runs` in a terminal, `limba report` as a page. Only the command line imports it."""
