"""Events in order, from files, folders, standard input and message brokers."""
