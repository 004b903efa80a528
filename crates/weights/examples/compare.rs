//! Puts arrays to a model file and says how far its answers are from those of another system:
//! `compare MODEL.safetensors IO.safetensors`, whose arrays are `x` and `y`.

use systole_ir::Result;
use systole_nn::Model;
use systole_weights::WeightSource;

fn main() -> Result<()> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    systole_runtime::register(systole_cpu::provider());
    let mut model = Model::load_to_predict(&paths[0])?;
    let arrays = WeightSource::open(paths[1].as_ref())?;
    let array = |name: &str| arrays.tensors().iter().find(|(n, _)| n == name).expect("an array").1.clone();
    let (found, expected) = (model.predict_on_batch(&array("x"))?.to_f32s(), array("y").to_f32s());
    assert_eq!(found.len(), expected.len());
    let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let scale = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
    #[allow(clippy::print_stdout)]
    {
        println!("greatest difference {most:e}, greatest value {scale:e}, of {} values", found.len());
    }
    Ok(())
}
