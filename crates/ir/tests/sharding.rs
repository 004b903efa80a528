//! Mesh and sharding: parsing, shard types and errors.

use systole_ir::{DType, Mesh, Sharding, TensorType};

#[test]
fn parts_of_an_array_cover_it_once() {
    let mesh: Mesh = "a=2,b=3".parse().unwrap();
    let ty = TensorType::new(DType::F32, [6, 4]);
    let both = Sharding::replicated(2).split(0, 1).split(1, 0);
    assert_eq!(both.local(&mesh, &ty).unwrap().shape.dims(), [2, 2]);
    let mut seen = [0; 24];
    for device in 0..6 {
        let r = both.ranges(&mesh, &ty.shape, device);
        r[0].clone().for_each(|i| r[1].clone().for_each(|j| seen[i * 4 + j] += 1));
    }
    assert_eq!(seen, [1; 24]);
    let one = Sharding::replicated(2).split(0, 0).split(0, 1);
    assert_eq!(one.ranges(&mesh, &ty.shape, 4)[0], 4..5);
    assert_eq!(one.text(&mesh), r#"[{"a", "b"}, {}]"#);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mesh: Mesh = "data=4".parse().unwrap();
    let ty = TensorType::new(DType::F32, [6, 4]);
    let error = Sharding::replicated(2).split(0, 0).local(&mesh, &ty).unwrap_err().to_string();
    assert!(error.contains("into 4") && error.contains("8"), "{error}");
    assert!(Sharding::replicated(1).local(&mesh, &ty).is_err());
    assert!(Sharding::replicated(2).split(0, 0).split(1, 0).local(&mesh, &ty).is_err());
    assert!(Sharding::replicated(2).split(1, 1).local(&mesh, &ty).is_err());
    for bad in ["", "data", "data=0", "data=2,data=2", "da ta=2", "a=4294967296,b=4294967296,c=4294967296"] {
        assert!(bad.parse::<Mesh>().is_err(), "{bad:?}");
    }
}
