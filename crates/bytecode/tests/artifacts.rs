//! Tests of artifact writing: round trips at every version, features a version lacks, malformed bytes.

mod common;

use common::{PROGRAM, bare};
use std::panic::catch_unwind;
use systole_base::ErrorKind;
use systole_base::rng::RandomStream;
use systole_bytecode::{
    CURRENT, MOST_BYTES_PER_BYTE, SPARE_BYTES, StablehloVersion, parse, version_of, write,
};
use systole_mlir::syntax::{
    Attribute, DenseElements, ElementData, MlirModule, MlirRegion, MlirType, NamedAttributes, Operation,
    RankedTensorType,
};
use systole_mlir::text;
use systole_testing::assert_error;

fn program() -> MlirModule {
    text::parse(PROGRAM).expect("the program of the tests")
}

#[test]
fn what_is_written_for_any_version_is_read_again() {
    let mut forms = Vec::new();
    for minor in 3..=CURRENT.minor {
        let version = StablehloVersion::new(1, minor, 0);
        let bytes = write(&program(), version).unwrap();
        assert_eq!(version_of(&bytes), Some(version));
        let read = parse(&bytes).unwrap();
        assert_eq!(read.functions[0].names, ["weights", ""]);
        assert_eq!(read.meshes, program().meshes);
        assert_eq!(write(&read, version).unwrap(), bytes, "the same bytes from what was read");
        forms.push(bare(read));
    }
    assert!(forms.windows(2).all(|pair| pair[0] == pair[1]), "all versions say the same");
}

#[test]
fn programs_mean_the_same_as_their_text() {
    let text = "func.func @main(%a: tensor<4x3xf32>, %k: tensor<2xi32>) -> (tensor<2x3xf32>, tensor<3xf32>) {
        %cst = stablehlo.constant dense<[1.0, 2.0, 0x7F800000]> : tensor<3xf32>
        %m = stablehlo.constant dense<true> : tensor<4x3xi1>
        %b = stablehlo.broadcast_in_dim %cst, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32>
        %c = stablehlo.select %m, %a, %b : tensor<4x3xi1>, tensor<4x3xf32>
        %d = \"stablehlo.gather\"(%c, %k) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
            start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<4x3xf32>, tensor<2xi32>)
            -> tensor<2x3xf32>
        return %d, %cst : tensor<2x3xf32>, tensor<3xf32>
    }";
    let module = text::parse(text).unwrap();
    let again = parse(&write(&module, StablehloVersion::new(1, 0, 0)).unwrap()).unwrap();
    let printed = |module: &MlirModule| {
        let program = systole_mlir::import::program(module).unwrap().program;
        systole_ir::text::print_program(&program.graph, &program.donated, program.spread.as_ref())
    };
    // Bytecode contains the text's names only in locations.
    let names = |text: String| text.replace("%a", "%arg0").replace("%k", "%arg1");
    assert_eq!(names(printed(&module)), names(printed(&again)));
}

#[test]
fn what_a_version_does_not_have_is_refused_by_name() {
    let refused = |text: &str, minor: u16| {
        let e = write(&text::parse(text).unwrap(), StablehloVersion::new(1, minor, 0)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        e.to_string()
    };
    let tan = "func.func @f(%a: tensor<f32>) -> tensor<f32> {
        %0 = stablehlo.tan %a : tensor<f32>
        return %0 : tensor<f32>
    }";
    assert!(refused(tan, 3).contains("stablehlo.tan requires StableHLO 1.4.0"), "{}", refused(tan, 3));
    assert!(write(&text::parse(tan).unwrap(), StablehloVersion::new(1, 4, 0)).is_ok());
    let float4 =
        "func.func @f(%a: tensor<2xf4E2M1FN>) -> tensor<2xf4E2M1FN> { return %a : tensor<2xf4E2M1FN> }";
    assert!(refused(float4, 7).contains("f4E2M1FN requires StableHLO 1.8.0"));
    let highest = "func.func @f(%a: tensor<f32>) -> tensor<f32> {
        %0 = stablehlo.exponential %a {result_accuracy = #stablehlo.result_accuracy<atol = 0.0, rtol = 0.0, ulps = 0,
            mode = #stablehlo.result_accuracy_mode<HIGHEST>>} : tensor<f32>
        return %0 : tensor<f32>
    }";
    assert!(refused(highest, 8).contains("`result_accuracy`"));
    assert!(refused(PROGRAM, 2).contains("backend_config") || refused(PROGRAM, 2).contains("api_version"));
    let other = "func.func @f(%a: tensor<f32>) -> tensor<f32> {
        %0 = chlo.erf %a : tensor<f32> -> tensor<f32>
        return %0 : tensor<f32>
    }";
    assert!(refused(other, 9).contains("cannot write chlo.erf"));
    for version in [
        StablehloVersion::new(0, 20, 0),
        StablehloVersion::new(1, CURRENT.minor + 1, 0),
        StablehloVersion::new(2, 0, 0),
    ] {
        assert_eq!(write(&program(), version).unwrap_err().kind(), ErrorKind::Unsupported, "{version}");
    }
}

#[test]
fn cut_and_damaged_files_end_in_errors() {
    let whole = write(&program(), CURRENT).unwrap();
    let parses = |bytes: &[u8]| catch_unwind(|| parse(bytes).map(|module| held(&module))).expect("no panic");
    for at in 0..whole.len() {
        assert!(parses(&whole[..at]).is_err(), "cut at {at}");
    }
    let mut read = 0;
    for i in 0..4000 {
        let mut draws = RandomStream::new(7, 0, i);
        let mut bytes = whole.clone();
        for _ in 0..1 + draws.below(4) {
            let at = draws.below(bytes.len() as u64) as usize;
            bytes[at] = draws.below(256) as u8;
        }
        if let Ok(module) = parse(&bytes) {
            catch_unwind(|| write(&module, CURRENT).map(drop)).expect("no panic").unwrap_or_default();
        }
        if let Ok(size) = parses(&bytes) {
            read += 1;
            assert!(size <= MOST_BYTES_PER_BYTE * bytes.len() + SPARE_BYTES);
        }
    }
    assert!((1..3900).contains(&read), "some damage is seen, some is none: {read}");
}

/// A few bytes that expand to very many: an attribute that is a list of itself twice, nested.
#[test]
fn programs_that_would_unfold_without_end_are_refused() {
    let mut value = Attribute::Int(1);
    for _ in 0..24 {
        value = Attribute::List(vec![value.clone(), value]);
        if size(&value) > 1 << 16 {
            break;
        }
    }
    let mut module = program();
    let attributes = |n: usize| (0..n).map(|i| (format!("a{i}"), value.clone())).collect::<NamedAttributes>();
    module.functions[0].attributes = attributes(1);
    let small = write(&module, CURRENT).unwrap();
    assert!(parse(&small).is_ok());
    module.functions[0].attributes = attributes(64);
    let bytes = write(&module, CURRENT).unwrap();
    assert!(bytes.len() < small.len() + 1000, "each attribute is written once");
    assert_error(&parse(&bytes).unwrap_err(), ErrorKind::Data, &["512"]);
}

#[test]
fn what_is_read_takes_no_more_memory_than_is_said() {
    let bytes = write(&program(), CURRENT).unwrap();
    let held = held(&parse(&bytes).unwrap());
    assert!(held > bytes.len(), "something is counted");
    assert!(held <= MOST_BYTES_PER_BYTE * bytes.len() + SPARE_BYTES, "{held} bytes from {}", bytes.len());
}

/// Returns the memory of a module in bytes.
fn held(module: &MlirModule) -> usize {
    let resources: usize = module.resources.iter().map(|(name, bytes)| name.len() + bytes.len() + 48).sum();
    let functions = module.functions.iter().map(|f| {
        let values: usize = f.values.iter().map(of_type).sum();
        let results: usize = f.results.iter().map(|(ty, a)| of_type(ty) + all(a)).sum();
        values + results + f.parameters.iter().map(all).sum::<usize>() + all(&f.attributes) + region(&f.body)
    });
    resources + all(&module.attributes) + functions.sum::<usize>()
}

fn region(r: &MlirRegion) -> usize {
    let op = |op: &Operation| {
        let lists = 8 * (op.operands.capacity() + op.results.capacity());
        let regions: usize = op.regions.iter().map(region).sum();
        size_of::<Operation>() + op.name.capacity() + lists + all(&op.attributes) + regions
    };
    size_of::<MlirRegion>() + 8 * r.arguments.capacity() + r.operations.iter().map(op).sum::<usize>()
}

fn all(attributes: &NamedAttributes) -> usize {
    attributes.iter().map(|(name, value)| 24 + name.capacity() + size(value)).sum()
}

fn of_type(ty: &MlirType) -> usize {
    let inner: usize = match ty {
        MlirType::Tensor(RankedTensorType { dims, element, encoding }) => {
            16 * dims.capacity() + element.capacity() + encoding.as_ref().map_or(0, String::capacity)
        }
        MlirType::Tuple(items) => items.iter().map(of_type).sum(),
        MlirType::Function(from, to) => from.iter().chain(to).map(of_type).sum(),
        MlirType::Scalar(name) | MlirType::Other(name) => name.capacity(),
        MlirType::Token => 0,
    };
    size_of::<MlirType>() + inner
}

fn size(value: &Attribute) -> usize {
    let inner: usize = match value {
        Attribute::String(text) | Attribute::Symbol(text) => text.capacity(),
        Attribute::List(items) | Attribute::Array(_, items) => items.iter().map(size).sum(),
        Attribute::Dictionary(entries) | Attribute::Struct(_, entries) => all(entries),
        Attribute::Type(ty) => of_type(ty),
        Attribute::Dense(DenseElements { ty, elements }) => {
            let elements = match elements {
                ElementData::Bytes(bytes) => bytes.capacity(),
                ElementData::Splat(words) | ElementData::List(_, words) => {
                    words.iter().map(|w| 24 + w.capacity()).sum()
                }
                ElementData::Resource(name) => name.capacity(),
                ElementData::None => 0,
            };
            of_type(ty) + elements
        }
        Attribute::Keyword(a, b) | Attribute::Float(a, b) | Attribute::Other(a, b) => {
            a.capacity() + b.capacity()
        }
        Attribute::Sharding(mesh, dims) => {
            mesh.len() + dims.iter().flatten().map(|a| 24 + a.len()).sum::<usize>()
        }
        Attribute::Convolution(layouts) => layouts.iter().flatten().map(|l| 24 + l.len()).sum(),
        Attribute::Unit | Attribute::Bool(_) | Attribute::Int(_) => 0,
    };
    size_of::<Attribute>() + inner
}
