//! Tests that public names of the previous version still compile, as deprecated aliases.

#![allow(deprecated, reason = "that is what is tested")]

use systole::config::Config;
use systole::data::format::tfrecord::{Compression, Reader, Writer};
use systole::datasets::Language;
use systole::ir::op::Cost;
use systole::runtime::{AheadSlice, Arg};

#[test]
fn names_of_the_previous_version_are_aliases() {
    fn same<A: 'static, B: 'static>() -> bool {
        std::any::TypeId::of::<A>() == std::any::TypeId::of::<B>()
    }
    assert!(same::<Config, systole::config::RunConfig>());
    assert!(same::<Reader, systole::data::format::tfrecord::TfRecordReader>());
    assert!(same::<Writer, systole::data::format::tfrecord::TfRecordWriter>());
    assert!(same::<Compression, systole::data::format::tfrecord::TfRecordCompression>());
    assert!(same::<Language, systole::datasets::TextTokenizer>());
    assert!(same::<Cost, systole::ir::op::OpCost>());
    assert!(same::<AheadSlice, systole::runtime::AotTopology>());
    assert!(same::<Arg<'static>, systole::runtime::ExecutableArg<'static>>());
}
