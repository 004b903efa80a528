//! Environment variables: overrides, invalid values, the table.

use systole_base::knobs::{EnvVar, KNOBS, override_value, parse_bytes};

#[test]
fn an_override_is_stronger_than_the_default() {
    let knob = EnvVar { name: "SYSTOLE_TEST_KNOB", values: "0..9", default: "3", doc: "for this test" };
    assert_eq!(knob.get_usize(), 3);
    override_value(knob, "5");
    override_value(knob, "7");
    assert_eq!(knob.get_usize(), 7);
}

#[test]
fn a_wrong_value_is_told() {
    let knob = EnvVar { name: "SYSTOLE_TEST_WRONG", values: "on|off", default: "on", doc: "for this test" };
    assert!(knob.is_on().unwrap());
    override_value(knob, "off");
    assert!(!knob.is_on().unwrap());
    for e in [knob.number().unwrap_err(), knob.no_value("off")] {
        let text = e.to_string();
        assert!(text.contains("`off`") && text.contains("SYSTOLE_TEST_WRONG"), "{text}");
        assert!(text.contains("on|off: for this test"), "{text}");
    }
    override_value(knob, "maybe");
    assert!(knob.is_on().is_err());
}

#[test]
fn bytes_have_units() {
    let cases = [("7", 7), ("1k", 1024), ("512 MiB", 512 << 20), ("1.5GiB", 3 << 29), ("2GB", 2_000_000_000)];
    for (text, bytes) in cases {
        assert_eq!(parse_bytes(text).unwrap(), bytes);
    }
    for text in ["", "0", "-1", "GiB", "4 GiB more", "1e99"] {
        assert!(parse_bytes(text).is_err(), "{text}");
    }
    let knob = EnvVar { name: "SYSTOLE_TEST_BYTES", values: "BYTES", default: "", doc: "for this test" };
    assert_eq!(knob.get_bytes().unwrap(), None);
    override_value(knob, "many");
    assert!(knob.get_bytes().unwrap_err().to_string().contains("SYSTOLE_TEST_BYTES"));
}

#[test]
fn table_is_well_formed() {
    for (i, k) in KNOBS.iter().enumerate() {
        assert!(k.name.starts_with("SYSTOLE_") && !k.doc.is_empty() && !k.values.is_empty());
        assert!(KNOBS[..i].iter().all(|o| o.name != k.name), "{} twice", k.name);
    }
}
