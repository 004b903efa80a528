//! Tests that `fit` starts copying the next batch to the device before the current step ends, on the engine and through
//! PJRT, with a backend that records events and delays the end of steps.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use systole_cpu::CpuBackend;
use systole_data::{Dataset, Sample};
use systole_ir::{Graph, Literal, Result, TensorType};
use systole_nn::{Compile, Fit, Model, layers::dense, loss::mean_squared_error, optimizer::adam};
use systole_pjrt::{Client, PjrtBackend, Plugin};
use systole_runtime::{
    Backend, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, ExecutableArg, ExecutableReport,
};

const STEPS: usize = 6;
/// Inputs are batches of this shape whose values are the batch's number.
const INPUT: [usize; 2] = [4, 3];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    /// The copy of a batch's inputs was started.
    Put(usize),
    Begin(usize),
    End(usize),
}

#[derive(Default)]
struct Log {
    events: Mutex<Vec<Event>>,
    changed: Condvar,
}

impl Log {
    fn add(&self, event: Event) {
        self.events.lock().unwrap().push(event);
        self.changed.notify_all();
    }

    /// Waits for the event, at most a minute, so that a `fit` without overlap fails instead of hanging.
    fn wait_for(&self, event: Event) {
        let events = self.events.lock().unwrap();
        let missing = |events: &mut Vec<Event>| !events.contains(&event);
        drop(self.changed.wait_timeout_while(events, Duration::from_secs(60), missing).unwrap());
    }
}

/// A backend that records its calls and ends no step before the next batch is being copied.
struct Recording(Arc<dyn Backend>, Arc<Log>);

impl Backend for Recording {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.0.devices()
    }

    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>> {
        let program = self.0.compile(graph, options)?;
        Ok(Arc::new(Step { program, log: self.1.clone(), taken: Mutex::default() }))
    }

    fn put(&self, value: &Literal, device: DeviceId) -> Result<Buffer> {
        let buffer = self.0.put(value, device)?;
        if value.shape().dims() == INPUT {
            self.1.add(Event::Put(value.get(0).as_i64() as usize));
        }
        Ok(buffer)
    }
}

struct Step {
    program: Arc<dyn Executable>,
    log: Arc<Log>,
    taken: Mutex<usize>,
}

impl Executable for Step {
    fn param_types(&self) -> &[TensorType] {
        self.program.param_types()
    }

    fn run(&self, args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>> {
        let mut taken = self.taken.lock().unwrap();
        self.log.add(Event::Begin(*taken));
        let results = self.program.run(args)?;
        if *taken + 1 < STEPS {
            self.log.wait_for(Event::Put(*taken + 1));
        }
        self.log.add(Event::End(*taken));
        *taken += 1;
        Ok(results)
    }

    fn report(&self) -> &ExecutableReport {
        self.program.report()
    }
}

fn engine() -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new().unwrap())
}

fn through_pjrt() -> Arc<dyn Backend> {
    let exe: PathBuf = std::env::current_exe().expect("a test has a path");
    let found = exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file());
    let plugin = Plugin::load(&found.expect("cargo builds the library with its tests")).unwrap();
    Arc::new(PjrtBackend::new("pjrt", Client::open(&plugin, &[]).unwrap()))
}

fn data() -> Dataset {
    Dataset::range(STEPS as u64).map(|s| {
        let number = s.get("value").map_or(f32::NAN, |x| x.get(0).as_f64() as f32);
        let [n, width] = INPUT;
        Sample::new([
            ("x", Literal::from_slice(INPUT, &vec![number; n * width]).unwrap()),
            ("label", Literal::from_slice([n, 1], &vec![number * 0.5; n]).unwrap()),
        ])
    })
}

/// Returns the weights after a pass over the data.
fn trained(backend: Arc<dyn Backend>, data: &Dataset, steps_per_epoch: Option<usize>) -> Vec<Literal> {
    let mut model = Model::sequential([dense(8).activation("relu"), dense(1)]);
    let compile = Compile {
        optimizer: adam(1e-2),
        loss: mean_squared_error(),
        backend: Some(backend),
        ..Compile::default()
    };
    model.compile(compile).unwrap();
    let history = model.fit(data, Fit { verbose: 0, steps_per_epoch, ..Fit::default() }).unwrap();
    assert_eq!(history.step_ms.len(), STEPS);
    let names = ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"];
    names.map(|name| model.weight(name).unwrap()).into()
}

#[test]
fn the_next_batch_is_on_its_way_before_a_step_ends() {
    for (name, backend) in [("cpu", engine()), ("pjrt", through_pjrt())] {
        for (data, steps) in [(data(), None), (data().repeat(), Some(STEPS))] {
            let log = Arc::new(Log::default());
            let weights = trained(Arc::new(Recording(backend.clone(), log.clone())), &data, steps);
            let events = log.events.lock().unwrap().clone();
            let at = |event| {
                events.iter().position(|e| *e == event).unwrap_or_else(|| panic!("{event:?}: {events:?}"))
            };
            for step in 0..STEPS {
                assert!(at(Event::Put(step)) < at(Event::Begin(step)), "{name}: {events:?}");
                if step + 1 < STEPS {
                    assert!(at(Event::Put(step + 1)) < at(Event::End(step)), "{name}: {events:?}");
                }
                // Only one batch ahead: the one after it waits until a step has consumed this one.
                if step + 2 < STEPS {
                    assert!(at(Event::End(step)) < at(Event::Put(step + 2)), "{name}: {events:?}");
                }
            }
            // Prefetching does not change the data; `debug()` disables it.
            assert_eq!(weights, trained(backend.clone(), &data.debug(), steps), "{name}");
            // No unused batch was read.
            assert_eq!(events.iter().filter(|e| matches!(e, Event::Put(_))).count(), STEPS, "{name}");
        }
    }
}
