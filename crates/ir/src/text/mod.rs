//! StableHLO text: the one dump format of graphs, printed and parsed here.
