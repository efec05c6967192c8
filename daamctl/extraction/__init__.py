"""From recordings, texts or images to stored vectors.

`items` reads the inputs, `batching` plans the batches, `stream` embeds them, `shards` writes the files, and `stopwatch`
measures the speed.
"""
