//! Asynchronous devices: at most two steps are in flight; reports and times are those of finished steps.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use systole_data::{Dataset, Sample};
use systole_ir::{Graph, Literal, Result, TensorType};
use systole_nn::callback::{Callback, FitCx};
use systole_nn::progress::{self, ProgressEvent};
use systole_nn::{Compile, Fit, Model, layers::dense, loss::mean_squared_error};
use systole_runtime::{
    Backend, Buffer, CompileOptions, DeviceData, DeviceId, DeviceInfo, Executable, ExecutableArg,
    ExecutableReport, ReadyEvent, ReferenceBackend, STEPS_IN_FLIGHT,
};

const STEPS: usize = 8;
/// What a step takes on the device, at least.
const EACH: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Happened {
    Begin(usize),
    End(usize),
    Told(usize),
}

/// What happened, in order.
#[derive(Default)]
struct Log {
    all: Mutex<Vec<Happened>>,
    changed: Condvar,
}

impl Log {
    fn all(&self) -> MutexGuard<'_, Vec<Happened>> {
        self.all.lock().unwrap()
    }

    fn add(&self, what: Happened) {
        self.all().push(what);
        self.changed.notify_all();
    }

    fn wait_for(&self, what: Happened, most: Duration) {
        let missing = |all: &mut Vec<Happened>| !all.contains(&what);
        drop(self.changed.wait_timeout_while(self.all(), most, missing).unwrap());
    }

    fn at(&self, what: Happened) -> usize {
        let all = self.all();
        all.iter().position(|w| *w == what).unwrap_or_else(|| panic!("{what:?}: {all:?}"))
    }
}

/// When the device ends a step.
#[derive(Clone, Copy)]
enum Ends {
    /// After a while.
    Soon,
    /// When the one behind it was begun, and the host had the time to begin another.
    WhenFollowed,
}

/// The interpreter as an asynchronous device: results are available at once, but steps end when its thread says so.
struct Device {
    engine: ReferenceBackend,
    log: Arc<Log>,
    begin: Sender<(usize, ReadyEvent)>,
}

impl Device {
    fn new(ends: Ends) -> (Arc<Device>, Arc<Log>) {
        let log = Arc::new(Log::default());
        let (begin, steps): (_, Receiver<(usize, ReadyEvent)>) = channel();
        let own = log.clone();
        std::thread::spawn(move || {
            for (step, event) in steps {
                std::thread::sleep(EACH);
                if let Ends::WhenFollowed = ends
                    && step + 1 < STEPS
                {
                    // Long, so that a slow machine changes nothing; then a while in which nothing is to happen.
                    own.wait_for(Happened::Begin(step + 1), Duration::from_secs(60));
                    own.wait_for(Happened::Begin(step + 2), 4 * EACH);
                }
                own.add(Happened::End(step));
                event.done(Ok(()));
            }
        });
        (Arc::new(Device { engine: ReferenceBackend, log: log.clone(), begin }), log)
    }
}

impl Backend for Device {
    fn name(&self) -> &str {
        "late"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.engine.devices()
    }

    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>> {
        let program = self.engine.compile(graph, options)?;
        let (log, begin) = (self.log.clone(), self.begin.clone());
        Ok(Arc::new(Program { program, log, begin, begun: Mutex::default() }))
    }

    fn put(&self, value: &Literal, device: DeviceId) -> Result<Buffer> {
        self.engine.put(value, device)
    }
}

struct Program {
    program: Arc<dyn Executable>,
    log: Arc<Log>,
    begin: Sender<(usize, ReadyEvent)>,
    begun: Mutex<usize>,
}

/// An array that nobody sees before its step has ended.
struct Made {
    value: Literal,
    by: ReadyEvent,
}

impl DeviceData for Made {
    fn to_literal(&self, _: &TensorType) -> Result<Literal> {
        self.by.wait()?;
        Ok(self.value.clone())
    }

    fn ready_event(&self) -> Option<ReadyEvent> {
        Some(self.by.clone())
    }
}

impl Executable for Program {
    fn param_types(&self) -> &[TensorType] {
        self.program.param_types()
    }

    fn run(&self, args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>> {
        let value = |arg: &ExecutableArg<'_>| match arg.buffer().data::<Made>() {
            Some(made) => Ok(made.value.clone()),
            None => arg.buffer().to_literal(),
        };
        let args = args.iter().map(value).collect::<Result<Vec<_>>>()?;
        let results =
            self.program.run(args.into_iter().map(|v| ExecutableArg::Donate(v.into())).collect())?;
        let mut begun = self.begun.lock().unwrap();
        let by = ReadyEvent::new(1);
        self.log.add(Happened::Begin(*begun));
        self.begin.send((*begun, by.clone())).unwrap();
        *begun += 1;
        let made = |result: Buffer| {
            let data = Made { value: result.to_literal()?, by: by.clone() };
            Ok(Buffer::new(result.ty().clone(), Arc::new(data)))
        };
        results.into_iter().map(made).collect()
    }

    fn report(&self) -> &ExecutableReport {
        self.program.report()
    }
}

/// Batches that take their time, all the same.
fn data() -> Dataset {
    Dataset::range(STEPS as u64).map(|_: Sample| {
        std::thread::sleep(EACH / 2);
        Sample::new([
            ("x", Literal::from_slice([4, 3], &[0.5f32; 12]).unwrap()),
            ("label", Literal::from_slice([4, 1], &[1.0f32; 4]).unwrap()),
        ])
    })
}

fn model(device: Arc<Device>) -> Model {
    let mut model = Model::sequential([dense(1)]);
    let loss = mean_squared_error();
    model.compile(Compile { loss, backend: Some(device), ..Compile::default() }).unwrap();
    model
}

/// Milliseconds, with room for what an `f32` cannot tell.
fn millis(time: Duration) -> f32 {
    time.as_secs_f32() * 1e3 - 1e-3
}

#[test]
fn no_more_than_two_steps_are_under_way_and_data_that_come_meanwhile_are_not_waited_for() {
    let (device, log) = Device::new(Ends::WhenFollowed);
    let history = model(device).fit(&data(), Fit { verbose: 0, ..Fit::default() }).unwrap();
    let (mut under_way, mut most) = (0usize, 0usize);
    for what in log.all().iter() {
        match what {
            Happened::Begin(_) => under_way += 1,
            Happened::End(_) => under_way -= 1,
            Happened::Told(_) => {}
        }
        most = most.max(under_way);
    }
    assert_eq!((most, under_way), (STEPS_IN_FLIGHT, 0), "{:?}", log.all());
    assert_eq!((history.step_ms.len(), history.device_wait_ms.len()), (STEPS, STEPS));
    // Each batch was there before the step in front had ended.
    assert_eq!(history.wait_ms[1..], [0.0; STEPS - 1], "{:?}", history.wait_ms);
    assert_eq!(history.data_wait(), 0.0);
    assert!(history.verdict().starts_with("compute-bound"), "{}", history.verdict());
    assert!(history.device_wait() > 0.0);
}

/// Of the one test that shows progress.
static SHOWN: OnceLock<Arc<Log>> = OnceLock::new();
static TIMES: Mutex<VecDeque<(usize, Duration)>> = Mutex::new(VecDeque::new());

fn show(event: &ProgressEvent<'_>) {
    match event {
        ProgressEvent::Batch { step, elapsed, data_wait, device_wait, .. } => {
            assert!((0.0..=1.0).contains(data_wait) && (0.0..=1.0).contains(device_wait));
            SHOWN.get().unwrap().add(Happened::Told(step - 1));
            TIMES.lock().unwrap().push_back((*step, *elapsed));
        }
        ProgressEvent::EpochEnd { step, elapsed, .. } => {
            TIMES.lock().unwrap().push_back((*step, *elapsed));
        }
        _ => {}
    }
}

#[test]
fn what_is_told_of_a_step_is_told_after_its_end() {
    let (device, log) = Device::new(Ends::Soon);
    SHOWN.set(log.clone()).ok().unwrap();
    progress::install(show);
    let began = Instant::now();
    let history = model(device).fit(&data(), Fit::default()).unwrap();
    let all = began.elapsed();
    let told: Vec<usize> = (0..STEPS).filter(|step| log.all().contains(&Happened::Told(*step))).collect();
    assert!(told.contains(&0) && told.contains(&(STEPS - 1)), "{told:?}");
    for step in told {
        assert!(log.at(Happened::End(step)) < log.at(Happened::Told(step)), "{:?}", log.all());
    }
    // The device takes that long at least, and what is reported is no more than what went by.
    for (step, elapsed) in TIMES.lock().unwrap().iter() {
        assert!(*elapsed >= EACH * *step as u32, "{step} steps in {elapsed:?}");
    }
    assert!(history.step_ms.iter().all(|ms| *ms >= millis(EACH)), "{:?}", history.step_ms);
    let sum = Duration::from_secs_f32(history.step_ms.iter().sum::<f32>() / 1e3);
    assert!(sum <= all + EACH, "{sum:?} of {all:?}");
    assert!(history.median_step_ms() as f32 >= millis(EACH));
}

#[test]
fn steps_that_callbacks_see_are_timed_until_their_ends() {
    struct Sees(Arc<Log>);
    impl Callback for Sees {
        fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
            self.0.add(Happened::Told(cx.model.steps() as usize - 1));
            Ok(())
        }
    }
    let (device, log) = Device::new(Ends::Soon);
    let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(Sees(log.clone()))];
    let history = model(device).fit(&data(), Fit { verbose: 0, callbacks, ..Fit::default() }).unwrap();
    for step in 0..STEPS {
        assert!(log.at(Happened::End(step)) < log.at(Happened::Told(step)), "{:?}", log.all());
    }
    assert!(history.step_ms.iter().all(|ms| *ms >= millis(EACH)), "{:?}", history.step_ms);
    assert_eq!(history.step_ms.len(), STEPS);
}

#[test]
fn a_run_that_is_stopped_leaves_no_step_under_way() {
    let (device, log) = Device::new(Ends::Soon);
    let stop = Some(Arc::new(true.into()));
    let history = model(device).fit(&data(), Fit { verbose: 0, stop, ..Fit::default() }).unwrap();
    assert!(history.interrupted);
    assert_eq!(*log.all(), [Happened::Begin(0), Happened::End(0)]);
}
