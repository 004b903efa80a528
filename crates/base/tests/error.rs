//! Error messages: formatting of location, causes and hint.

use systole_base::{Error, ErrorKind};

#[test]
fn shows_every_part_once_and_keeps_the_inner_hint() {
    let e = Error::new(ErrorKind::Graph, "shapes differ").at("dense_1").at("model").hint("a").hint("b");
    assert_eq!(e.to_string(), "shapes differ\n  where: dense_1, in model\n  try: a");
    let inner = Error::new(ErrorKind::Unsupported, "hidden").because("of that").hint("this");
    let e = Error::io("cannot read", "a", std::io::Error::other(inner));
    assert_eq!(
        (e.kind(), e.to_string().as_str()),
        (ErrorKind::Unsupported, "cannot read a\n  why: of that\n  try: this")
    );
    fn send_sync<T: Send + Sync>() {}
    send_sync::<Error>();
}
