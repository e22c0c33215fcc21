"""Machine-level services: compilation, threads, memory budgets, atomic files, communication."""
