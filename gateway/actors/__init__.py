"""Who owns state or time: each actor keeps its state in local variables and answers messages."""
