//! `systole shrink`: minimizes a failing program for a bug report (test-case reduction).

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::commands::check::{PairArgs, quietly, short};
use crate::models::program;
use crate::render::screen::{Screen, number_of, quoted};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Literal, Result, err, text};
use systole_mlir::interface::{ProgramPort, SourceElement};
use systole_program::bisect::{self, DevicePair, RunComparison, first_difference};
use systole_program::shrink::{FailingCase, FailureOracle, shrink};
use systole_program::{files, inputs};

#[derive(Args)]
pub(crate) struct ShrinkArgs {
    /// StableHLO text or bytecode; `-` reads standard input
    #[arg(value_name = "FILE")]
    program: String,
    /// Write the minimized program to this file [default: FILE.min.mlir]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Stop after S seconds and write the smallest program found so far
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: u64,
    #[command(flatten)]
    pair: PairArgs,
}

/// Number of random seeds to try, so that the report needs no argument file.
const SEEDS: u64 = 4;

impl RunCommand for ShrinkArgs {
    fn own_devices(&self) -> Option<&str> {
        self.pair.devices.as_deref()
    }

    fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult {
        let program = self.pair.inputs.open(&self.program)?;
        let pair = self.pair.open(common)?;
        let (arguments, given) = self.pair.arguments(&program)?;
        let whole = FailingCase { graph: program.program.graph.clone(), arguments };
        let kind = quietly(|| pair.compare(&whole.graph, &whole.arguments));
        if matches!(kind, RunComparison::Same) {
            let e = err!(Config, "the program {} does not fail", program::called(&self.program));
            return Err(e
                .because(format!("{} agree in all results, with {given}", short(&pair).join(" and ")))
                .hint_command("pass devices that differ with --devices, failing arguments with --input, or another seed with --random")
                .into());
        }
        let mut judge = FailureTest { pair: &pair, kind, tried: 0, screen };
        let small = quietly(|| {
            let culprit = first_difference(&pair, &whole.graph, &whole.arguments).map(|c| c.node);
            shrink(&whole, culprit, &mut judge, Instant::now() + Duration::from_secs(self.time_limit))
        });
        let written = quietly(|| self.write(&small, &mut judge))?;
        self.tell(&whole, &small, &judge, &written, screen);
        Ok(0)
    }
}

/// Files written: the program, and its arguments if no seed reproduces the failure; with the option that passes the
/// arguments.
struct ReproducerFiles {
    program: PathBuf,
    arguments: Option<PathBuf>,
    option: String,
}

impl ShrinkArgs {
    fn write(&self, small: &FailingCase, judge: &mut FailureTest<'_>) -> Result<ReproducerFiles> {
        let path = self.output.clone().unwrap_or_else(|| beside(&self.program));
        let faces = faces(small);
        let seed = (0..SEEDS).find(|seed| {
            let drawn = inputs::random(&faces, *seed).map(|all| all.into_iter().flatten().collect());
            drawn.is_ok_and(|arguments| judge.fails(&FailingCase { graph: small.graph.clone(), arguments }))
        });
        let (arguments, option) = match seed {
            _ if faces.is_empty() => (None, String::new()),
            Some(seed) => (None, format!(" --random {seed}")),
            None => {
                let file = path.with_extension("npz");
                let one = |(i, (face, x)): (usize, (&ProgramPort, &Literal))| {
                    let bytes = face.join(&[x])?;
                    Ok((inputs::name(i), files::stored(&face.element.name(), &face.dims, bytes)?))
                };
                let arrays =
                    faces.iter().zip(&small.arguments).enumerate().map(one).collect::<Result<_>>()?;
                files::write(&file, files::ArrayFileFormat::Npz, arrays)?;
                let option = format!(" --input {}", quoted(&file));
                (Some(file), option)
            }
        };
        write_atomically(&OsFileSystem, &path, &[text::print(&small.graph).as_bytes()])?;
        Ok(ReproducerFiles { program: path, arguments, option })
    }

    fn tell(
        &self,
        whole: &FailingCase,
        small: &FailingCase,
        judge: &FailureTest<'_>,
        written: &ReproducerFiles,
        screen: &Screen,
    ) {
        let options = self.pair.words(judge.pair) + &written.option;
        let again = format!("check {} {options}", quoted(&written.program));
        if screen.json {
            let size = |c: &FailingCase| json!({"ops": c.ops(), "arguments": c.arguments.len(), "results": c.graph.results.len()});
            screen.object(&json!({
                "program": self.program, "written": written.program, "arguments": written.arguments,
                "from": size(whole), "to": size(small), "tried": judge.tried, "again": format!("systole {again}"),
            }));
            return;
        }
        let arguments =
            written.arguments.as_ref().map_or(String::new(), |p| format!(" (arguments: {})", p.display()));
        screen.line(format!(
            "{}{arguments}: {}; before: {}",
            written.program.display(),
            size(small),
            size(whole)
        ));
        screen.line(text::print(&small.graph).trim_end());
        screen.line(format!(
            "it fails like the original program ({} tried):\n  {} {again}",
            number_of(judge.tried, "program"),
            crate::render::screen::program(),
        ));
        screen.line(format!(
            "to report it, send this program, this command and the output of `systole doctor` to {}/issues",
            env!("CARGO_PKG_REPOSITORY")
        ));
    }
}

/// Formats as `3 ops, 2 arguments, 1 result`.
fn size(case: &FailingCase) -> String {
    let results = number_of(case.graph.results.len(), "result");
    format!("{}, {}, {results}", number_of(case.ops(), "op"), number_of(case.arguments.len(), "argument"))
}

/// Returns `step.min.mlir` next to `step.mlir`.
fn beside(program: &str) -> PathBuf {
    match program {
        "-" => "program.min.mlir".into(),
        name => Path::new(name).with_extension("min.mlir"),
    }
}

/// Returns the argument types of a case, named as in its own graph.
fn faces(case: &FailingCase) -> Vec<ProgramPort> {
    let face = |(first, x): (usize, &Literal)| ProgramPort {
        dims: x.shape().to_vec(),
        element: SourceElement::Plain(x.dtype()),
        first,
    };
    case.arguments.iter().enumerate().map(face).collect()
}

struct FailureTest<'a> {
    pair: &'a DevicePair,
    kind: RunComparison,
    tried: usize,
    screen: &'a Screen,
}

impl FailureOracle for FailureTest<'_> {
    fn fails(&mut self, case: &FailingCase) -> bool {
        self.tried += 1;
        self.pair.compare(&case.graph, &case.arguments).is_like(&self.kind)
    }

    fn values(&mut self, case: &FailingCase) -> Option<Vec<Literal>> {
        let mut devices = self.pair.devices.iter().rev();
        devices.find_map(|device| bisect::run(&case.graph, &case.arguments, &**device).ok())
    }

    fn smaller(&mut self, case: &FailingCase) {
        if self.screen.verbose {
            crate::render::screen::note(&format!("smaller: {}", size(case)));
        }
    }
}
