//! Tests compiled TPU v1 programs against a reference evaluation of the layers, on random models.

use systole_base::rng::RandomStream;
use systole_tpu1::model::{
    Arithmetic, ChipConvolution, ChipLayer, ChipModel, ChipOp, ConvWindow, ImageShape, OutputRange,
    ScaledOperand,
};
use systole_tpu1::{ChipProgram, Instruction, ScaleFactor, Tpu1Chip, compile};

struct Draw(RandomStream);

impl Draw {
    fn from(&mut self, low: usize, high: usize) -> usize {
        low + self.0.below((high - low + 1) as u64) as usize
    }

    fn byte(&mut self) -> i8 {
        self.0.next_u32() as i8
    }

    fn bytes(&mut self, n: usize) -> Vec<i8> {
        (0..n).map(|_| self.byte()).collect()
    }

    fn is(&mut self, one_of: u64) -> bool {
        self.0.below(one_of) == 0
    }

    fn zero(&mut self) -> i32 {
        self.byte().into()
    }

    fn output(&mut self) -> OutputRange {
        let zero = self.zero();
        // A relu sets the minimum to the zero point.
        let low = if self.is(2) { zero } else { -128 };
        OutputRange { zero, low, high: if self.is(3) { 127.min(low + 90) } else { 127 } }
    }

    fn scale(&mut self, size: f64) -> ScaleFactor {
        let number = size * (0.5 + self.0.uniform_f64());
        if self.is(2) { ScaleFactor::fixed(number) } else { ScaleFactor::Real(number) }
    }

    fn operand(&mut self) -> ScaledOperand {
        ScaledOperand { zero: self.zero(), scale: ScaleFactor::fixed(0.1 + 0.8 * self.0.uniform_f64()) }
    }

    /// A random window that fits into the image, and the shape of its result.
    fn window(&mut self, from: ImageShape) -> (ConvWindow, [usize; 2]) {
        let sizes = [from.height, from.width];
        let mut window = ConvWindow::of([1, 1]);
        let mut made = [1, 1];
        for axis in 0..2 {
            let size = self.from(1, sizes[axis].min(3));
            let dilation = if size > 1 && sizes[axis] > 2 * (size - 1) { self.from(1, 2) } else { 1 };
            let before = if self.is(2) { self.from(0, size - 1) } else { 0 };
            let stride = self.from(1, 2);
            let reach = (size - 1) * dilation + 1;
            // There may be as much padding at the end.
            let room = sizes[axis] + before + if self.is(2) { before } else { 0 };
            window.size[axis] = size;
            window.stride[axis] = stride;
            window.dilation[axis] = if room >= reach { dilation } else { 1 };
            window.before[axis] = before;
            made[axis] = room.saturating_sub((size - 1) * window.dilation[axis] + 1) / stride + 1;
        }
        (window, made)
    }
}

fn convolution(d: &mut Draw, from: ImageShape) -> (ChipOp, ImageShape) {
    let kind = d.from(0, 3);
    // Dense over the whole image, 1×1, depthwise, or any window.
    let (window, made) = match kind {
        0 => (ConvWindow::of([from.height, from.width]), [1, 1]),
        1 => (ConvWindow::of([1, 1]), [from.height, from.width]),
        _ => d.window(from),
    };
    let is_depthwise = kind == 2;
    let filters = if is_depthwise { from.channels * d.from(1, 2) } else { d.from(1, 20) };
    let taps = window.size[0] * window.size[1];
    let each = if is_depthwise { 1 } else { from.channels };
    let size = 1.0 / (40.0 * f64::sqrt((taps * each) as f64));
    let op = ChipOp::Convolution(ChipConvolution {
        window,
        filters,
        is_depthwise,
        weights: d.bytes(taps * each * filters),
        bias: (0..filters).map(|_| d.0.next_u32() as i32 >> 18).collect(),
        input_zero: d.zero(),
        scale: d.scale(size),
        output: d.output(),
    });
    (op, ImageShape { height: made[0], width: made[1], channels: filters })
}

/// A random model; sums and products join a layer with an earlier tensor of its size.
fn model(d: &mut Draw) -> ChipModel {
    let input = match d.is(4) {
        true => ImageShape::vector(d.from(1, 40)),
        false => ImageShape { height: d.from(1, 8), width: d.from(1, 8), channels: d.from(1, 12) },
    };
    let mut model = ChipModel { name: "drawn".into(), tensors: vec![input], layers: Vec::new() };
    for n in 0..d.from(1, 6) {
        let last = model.tensors.len() - 1;
        let from = model.tensors[last];
        let same = (0..last).find(|t| model.tensors[*t] == from);
        let mut inputs = vec![last];
        let (op, to) = match (d.from(0, 5), same) {
            (3, _) => {
                let (window, made) = d.window(from);
                let output = OutputRange { zero: 0, ..d.output() };
                let op = ChipOp::Pool {
                    window: ConvWindow { dilation: [1, 1], ..window },
                    is_mean: d.is(2),
                    output,
                };
                (op, ImageShape { height: made[0], width: made[1], channels: from.channels })
            }
            (4, _) => (ChipOp::Table(Box::new(std::array::from_fn(|_| d.byte()))), from),
            (5, Some(other)) => {
                inputs.push(other);
                let operands = [d.operand(), d.operand()];
                match d.is(2) {
                    true => (
                        ChipOp::Arithmetic(
                            Arithmetic::Add,
                            operands,
                            ScaleFactor::fixed(2f64.powi(-20)),
                            d.output(),
                        ),
                        from,
                    ),
                    false => (
                        ChipOp::Arithmetic(
                            Arithmetic::Multiply,
                            operands,
                            ScaleFactor::fixed(0.01),
                            d.output(),
                        ),
                        from,
                    ),
                }
            }
            _ => convolution(d, from),
        };
        model.tensors.push(to);
        let output = model.tensors.len() - 1;
        model.layers.push(ChipLayer { name: format!("layer_{n}"), inputs, output, op });
    }
    model
}

fn chip(d: &mut Draw) -> Tpu1Chip {
    let accumulators = [24, 40, 4096][d.from(0, 2)];
    Tpu1Chip {
        matrix: [1, 3, 4, 8, 16][d.from(0, 4)],
        accumulators,
        unified_buffer: 1 << 18,
        ..Tpu1Chip::v1()
    }
}

#[test]
fn programs_of_random_models_compute_what_the_layers_do() {
    let (mut cut, mut ops) = (0, std::collections::BTreeSet::new());
    for seed in 0..240 {
        let mut d = Draw(RandomStream::new(33, 1, seed));
        let (model, chip, batch) = (model(&mut d), chip(&mut d), d.from(1, 5));
        let program =
            compile(&chip, &model, batch).unwrap_or_else(|e| panic!("model {seed}: {e}\n{model:?}"));
        let input = d.bytes(batch * model.input().values());
        let expected: Vec<i8> =
            input.chunks(model.input().values()).flat_map(|sample| model.evaluate(sample)).collect();
        let run = program.run(&chip, &input).unwrap_or_else(|e| panic!("model {seed}: {e}"));
        assert_eq!(run.output, expected, "model {seed} on {chip:?}: {model:?}");
        assert_eq!(run.overflows, 0);
        cut += usize::from(program.instructions.iter().any(
            |i| matches!(i, Instruction::SetConfiguration { register: systole_tpu1::Register::FirstLine, value } if *value > 0),
        ));
        let kind =
            |layer: &ChipLayer| format!("{:?}", layer.op).split([',', '[', ' ']).next().map(String::from);
        ops.extend(model.layers.iter().filter_map(kind));
        // The bytes sent to the chip decode to the program.
        let sent = ChipProgram::instructions_of(&program.bytes()).unwrap();
        assert_eq!(sent, program.instructions, "model {seed}");
        let timing = program.timing(&chip);
        assert_eq!(timing.tiles, program.tiles(), "model {seed}");
        assert!((timing.shares().iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
    assert_eq!(ops.len(), 5, "{ops:?}");
    assert!(cut > 10, "{cut} models whose images were split");
}

fn dense(inputs: usize, outputs: usize) -> ChipModel {
    let op = ChipOp::Convolution(ChipConvolution {
        window: ConvWindow::of([1, 1]),
        filters: outputs,
        is_depthwise: false,
        weights: vec![1; inputs * outputs],
        bias: vec![0; outputs],
        input_zero: 0,
        scale: ScaleFactor::fixed(0.01),
        output: OutputRange { zero: 0, low: -128, high: 127 },
    });
    let layer = ChipLayer { name: "dense_1".into(), inputs: vec![0], output: 1, op };
    ChipModel {
        name: "dense".into(),
        tensors: vec![ImageShape::vector(inputs), ImageShape::vector(outputs)],
        layers: vec![layer],
    }
}

/// Each error names the layer and a remedy.
#[test]
fn what_does_not_fit_is_told_with_the_layer_and_a_way_out() {
    let told = |chip: Tpu1Chip, model: &ChipModel, batch: usize| {
        compile(&chip, model, batch).unwrap_err().to_string()
    };
    let e = told(Tpu1Chip::v1(), &dense(8, 8), 5000);
    assert!(
        e.contains("5000")
            && e.contains("5000 rows")
            && e.contains("`dense_1`")
            && e.contains("--batch 4096"),
        "{e}"
    );
    let e = told(Tpu1Chip { unified_buffer: 1 << 14, ..Tpu1Chip::v1() }, &dense(600, 600), 40);
    assert!(e.contains("`dense_1`") && e.contains("16.0 KiB") && e.contains("--batch "), "{e}");
    let fits: usize = e.split("--batch ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(
        compile(&Tpu1Chip { unified_buffer: 1 << 14, ..Tpu1Chip::v1() }, &dense(600, 600), fits).is_ok(),
        "{e}"
    );
    let e = told(Tpu1Chip { weight_memory: 1 << 16, ..Tpu1Chip::v1() }, &dense(600, 600), 1);
    assert!(e.contains("`dense_1`") && e.contains("64.0 KiB"), "{e}");
    let mut wide = dense(1, 1);
    wide.tensors = vec![ImageShape { height: 1, width: 50, channels: 1 }; 2];
    let e = told(Tpu1Chip { accumulators: 40, ..Tpu1Chip::v1() }, &wide, 1);
    assert!(e.contains("50 pixels") && e.contains("--accumulators 100"), "{e}");
    let mut odd = dense(3, 3);
    odd.tensors[1].channels = 4;
    assert!(told(Tpu1Chip::v1(), &odd, 1).contains("`dense_1`"));
}

/// Invalid programs are rejected at the instruction that fails.
#[test]
fn wrong_programs_are_refused_with_the_instruction() {
    let chip = Tpu1Chip { matrix: 4, accumulators: 8, unified_buffer: 256, ..Tpu1Chip::v1() };
    let good = compile(&chip, &dense(4, 4), 2).unwrap();
    assert_eq!(good.run(&chip, &[100; 8]).unwrap().output, [4; 8]);
    assert!(good.run(&chip, &[0; 7]).unwrap_err().to_string().contains("7 values"));
    let told = |wanted: &str, change: &dyn Fn(&mut ChipProgram)| {
        let mut program = good.clone();
        change(&mut program);
        let e = program.run(&chip, &[1; 8]).unwrap_err().to_string();
        assert!(e.contains(wanted) && e.contains("instruction "), "{e}");
    };
    let without = |program: &mut ChipProgram, name: &str| {
        program.instructions.retain(|i| !i.to_string().starts_with(name))
    };
    told("no tile in the queue", &|p| without(p, "read_weights"));
    told("since the last synchronize", &|p| without(p, "synchronize"));
    told("outside the weight memory", &|p| p.weights.truncate(20));
    let mut draw = Draw(RandomStream::new(7, 7, 7));
    for _ in 0..3000 {
        // Random changes of instruction bytes end in a result or an error.
        let mut program = good.clone();
        let mut bytes = program.bytes();
        for _ in 0..3 {
            let at = draw.from(0, bytes.len() - 1);
            bytes[at] = draw.byte() as u8;
        }
        if let Ok(instructions) = ChipProgram::instructions_of(&bytes) {
            program.instructions = instructions;
            let _ = program.run(&chip, &[1; 8]);
            let _ = program.timing(&chip);
        }
    }
}
