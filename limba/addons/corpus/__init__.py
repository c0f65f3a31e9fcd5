"""From a crawl to a corpus: `limba corpus`, which runs the blocks of datatrove. The table of commands imports it."""
