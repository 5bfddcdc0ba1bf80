"""What a pipeline of stages does, which sends from rank to rank."""
