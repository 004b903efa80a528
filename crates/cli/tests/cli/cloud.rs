//! Tests of `systole cloud`: its output equals the golden files in `tests/cli/cloud/golden`, shells and Python can
//! parse it, its scripts work against stubs of gcloud, kubectl, srun and Ray (`tests/cli/cloud/stub`), and errors are
//! reported. None of it has run in a real cloud.
//!
//! `SYSTOLE_BLESS=1` rewrites the golden files.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use crate::program::{Done, Folder};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A golden folder for each: its name, and the arguments.
const CASES: [(&str, &str); 14] = [
    ("tpu-vm", "tpu-vm mine.toml --slice v5e-8 --max-hours 2"),
    (
        "tpu-vm-spot",
        "tpu-vm mlp --slice v5e-16 --spot --bucket gs://my-runs --region us-west4 -- --epochs 3 --set fit.batch_size=256",
    ),
    (
        "tpu-vm-slices",
        "tpu-vm mlp --slice v4:4x4x8 --num-slices 2 --bucket gs://my-runs --name my-run -- --batch-size 512",
    ),
    ("gke", "gke mine.toml --slice v3-8 --bucket gs://my-runs --image example.com/me/systole:1"),
    (
        "gke-spot",
        "gke mlp --slice v5e-16 --num-slices 2 --spot --bucket gs://my-runs --image example.com/me/systole:1",
    ),
    ("vertex", "vertex mine.toml --slice v6e-16 --bucket gs://my-runs --image example.com/me/systole:1"),
    (
        "vertex-spot",
        "vertex mlp --slice v5e-8 --spot --bucket gs://my-runs --image example.com/me/systole:1 --region europe-west4",
    ),
    ("ray", "ray mlp --slice v4-32 --num-slices 2 --spot --bucket gs://my-runs"),
    ("ray-gpu", "ray mine.toml --slice 8*h100"),
    ("slurm", "slurm mine.toml --slice 4*a100 --max-hours 24"),
    ("slurm-nodes", "slurm mlp --slice 16*cpu --nodes 4 --name my-run -- --batch-size 512"),
    ("kaggle", "kaggle mine.toml --slice v5e-8"),
    ("colab", "colab mlp --slice v5e-1"),
    ("colab-gpu", "colab mine.toml --slice t4 -- --epochs 1"),
];

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/cloud").join(path)
}

/// Files in a folder, by name.
fn texts(folder: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let read = |path: PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap())
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

fn write(f: &Folder, line: &str, out: &str) -> Done {
    if !f.path("mine.toml").exists() {
        fs::copy(own("mine.toml"), f.path("mine.toml")).unwrap();
    }
    let (ours, theirs) = line.split_once(" -- ").unwrap_or((line, ""));
    let mut args: Vec<&str> = ["cloud"].into_iter().chain(ours.split(' ')).chain(["--out", out]).collect();
    if ["mlp", "mine.toml"].iter().any(|model| ours.split(' ').nth(1) == Some(model)) {
        args.push("--synthetic");
    }
    if !theirs.is_empty() {
        args.push("--");
        args.extend(theirs.split(' '));
    }
    f.run(&args)
}

fn bash(f: &Folder, folder: &str, script: &str) -> Command {
    let mut command = Command::new("bash");
    let path = std::env::join_paths(
        [own("stub")].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    command.arg(script).current_dir(f.path(folder)).env("PATH", path.unwrap());
    command.env("STUB", f.path("stub")).env("POLL", "0").env("SYSTOLE", own("stub/systole"));
    command
}

fn run(mut command: Command) -> Done {
    Done::of(command.output().unwrap(), &["a script"])
}

/// A Python for what is Python.
fn python(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("SYSTOLE_PYTHON").map(PathBuf::from);
    let found = named.into_iter().chain(["python3".into()]).find(|python| {
        Command::new(python).arg("--version").output().is_ok_and(|done| done.status.success())
    });
    if found.is_none() {
        println!("SKIPPED {test}: there is no Python");
    }
    found
}

#[test]
fn files_are_those_that_stand_here_and_their_languages_read_them() {
    let f = Folder::new("cloud-golden");
    let is_blessed = std::env::var_os("SYSTOLE_BLESS").is_some_and(|v| v == "1");
    let mut pythons = Vec::new();
    for (name, line) in CASES {
        let done = write(&f, line, name).ok();
        let written = texts(&f.path(name));
        let golden = own("golden").join(name);
        if is_blessed {
            let _ = fs::remove_dir_all(&golden);
            fs::create_dir_all(&golden).unwrap();
            written.iter().for_each(|(file, text)| fs::write(golden.join(file), text).unwrap());
        }
        let should = texts(&golden);
        assert_eq!(written.keys().collect::<Vec<_>>(), should.keys().collect::<Vec<_>>(), "{name}");
        for (file, text) in &written {
            assert!(done.out.contains(file), "{file} is not told:\n{}", done.out);
            assert!(
                *text == should[file],
                "{name}/{file}: SYSTOLE_BLESS=1 cargo test --test cli cloud:\n{text}"
            );
            let path = f.path(name).join(file);
            let read = |command: &mut Command| Done::of(command.output().unwrap(), &[name, file]).ok();
            match path.extension().and_then(|end| end.to_str()) {
                Some("sh") => drop(read(Command::new("bash").arg("-n").arg(&path))),
                Some("json") => drop(serde_json::from_str::<serde_json::Value>(text).unwrap()),
                Some("py") => pythons.push(text.clone()),
                Some("ipynb") => pythons.extend(cells(text)),
                Some("yaml" | "toml") | None => {}
                other => panic!("nothing reads {other:?}"),
            }
        }
    }
    assert!(pythons.len() > 20, "{}", pythons.len());
    if let Some(python) = python("cloud") {
        let texts = serde_json::to_string(&pythons).unwrap();
        let program = "import json, sys\nfor i, text in enumerate(json.loads(sys.argv[1])): compile(text, f'text {i}', 'exec')";
        Done::of(Command::new(python).args(["-c", program, &texts]).output().unwrap(), &["compile"]).ok();
    }
}

/// The notebooks that are kept: name, what writes it, and the file among those that it writes.
const NOTEBOOKS: [(&str, &str, &str); 3] = [
    ("colab_tpu", "colab fashion-mnist --slice v5e-1", "colab.ipynb"),
    ("colab_gpu", "colab fashion-mnist --slice t4", "colab.ipynb"),
    ("kaggle_tpu", "kaggle fashion-mnist --slice v5e-8", "kaggle.ipynb"),
];

/// They are executed in `tests/peers/wheel.rs`.
#[test]
fn notebooks_that_are_kept_are_those_that_are_written() {
    let f = Folder::new("cloud-notebooks");
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let is_blessed = std::env::var_os("SYSTOLE_BLESS").is_some_and(|v| v == "1");
    for (name, line, file) in NOTEBOOKS {
        write(&f, line, name).ok();
        let text = fs::read_to_string(f.path(name).join(file)).unwrap();
        let kept = root.join("notebooks").join(name).with_extension("ipynb");
        if is_blessed {
            fs::write(&kept, &text).unwrap();
        }
        let should = fs::read_to_string(&kept).unwrap_or_default();
        assert!(text == should, "notebooks/{name}.ipynb: SYSTOLE_BLESS=1 cargo test --test cli cloud");
    }
    let Some(python) = python("notebooks") else { return };
    let mut command = Command::new(python);
    command.arg(root.join("fixtures/notebooks/generate.py"));
    command.args((!is_blessed).then_some("--check"));
    Done::of(command.output().unwrap(), &["generate.py"]).ok();
}

/// The cells of a notebook as Python: lines for a shell are put aside, and what makes nbformat 4.5 is looked at.
fn cells(text: &str) -> Vec<String> {
    let notebook: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&4.into(), &5.into()));
    let mut ids = std::collections::BTreeSet::new();
    let mut all = Vec::new();
    for cell in notebook["cells"].as_array().unwrap() {
        assert!(ids.insert(cell["id"].as_str().unwrap()), "two cells of one name");
        let lines: Vec<&str> =
            cell["source"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        let is_file = lines.first().is_some_and(|line| line.starts_with("%%"));
        if cell["cell_type"] == "code" && !is_file {
            assert!(cell["outputs"].as_array().unwrap().is_empty() && cell["execution_count"].is_null());
            let aside = |line: &&str| match line.trim_start().strip_prefix('!') {
                Some(_) => format!("{}pass\n", &line[..line.len() - line.trim_start().len()]),
                None => line.to_string(),
            };
            all.push(lines.iter().map(aside).collect());
        }
    }
    all
}

/// What a training is to come to at each attempt, and which machines there are.
fn stub(f: &Folder, plan: &[&str]) {
    let _ = fs::remove_dir_all(f.path("stub"));
    f.write("stub/plan", plan.join("\n") + "\n");
}

fn calls(f: &Folder) -> String {
    fs::read_to_string(f.path("stub/calls")).unwrap()
}

#[test]
fn a_tpu_vm_is_asked_for_watched_copied_from_and_deleted() {
    let f = Folder::new("cloud-tpu-vm");
    write(&f, "tpu-vm mine.toml --slice v5e-8 -- --set data.scale=1/255", "job").ok();
    let start = || {
        let mut command = bash(&f, "job", "run.sh");
        command.env("MACHINES", "systole-mine:1");
        run(command)
    };
    stub(&f, &["ok"]);
    let done = start().ok();
    assert!(done.out.contains("Epoch 1/1"), "{}", done.out);
    let told = calls(&f);
    assert!(
        told.contains(
            "systole train mine.toml --device tpu --out run --set data.scale=1/255 --strategy=data_parallel"
        ) || told.contains(
            "systole train mine.toml --device tpu --out run --strategy=data_parallel --set data.scale=1/255"
        ),
        "{told}"
    );
    assert!(
        told.ends_with("queued-resources delete systole-mine --zone=us-central1-a --force --quiet\n"),
        "{told}"
    );
    assert!(!f.path("stub/machines").exists() && f.path("job/run/log.csv").exists());
    let body: serde_json::Value = serde_json::from_slice(&fs::read(f.path("stub/body")).unwrap()).unwrap();
    assert_eq!(body["tpu"]["nodeSpec"][0]["parent"], "projects/my-project/locations/us-central1-a");

    // The same command goes on: what was copied here goes to the new machine.
    stub(&f, &["error"]);
    let done = start();
    assert!(done.code == Some(1) && done.err.contains("the run failed"), "{}", done.err);
    assert_eq!(fs::read_to_string(f.path("job/run/log.csv")).unwrap().lines().count(), 2);
    assert!(!f.path("stub/machines").exists());

    // What cannot be copied is not deleted.
    stub(&f, &["ok"]);
    let script = fs::read_to_string(f.path("job/run.sh")).unwrap();
    let unable = script.replace("    STARTED=yes\n", "    STARTED=yes\n    touch \"$STUB/no-scp\"\n");
    assert_ne!(unable, script);
    fs::write(f.path("job/run.sh"), unable).unwrap();
    let done = start();
    assert!(done.err.contains("could not be copied") && f.path("stub/machines").exists(), "{}", done.err);
    let done = start();
    assert!(done.code == Some(1) && done.err.contains("systole-mine already exists"), "{}", done.err);
    run(bash(&f, "job", "delete.sh")).ok();
    assert!(!f.path("stub/machines").exists());

    // A request that is refused.
    fs::write(f.path("job/run.sh"), script).unwrap();
    stub(&f, &["ok"]);
    f.write("stub/refused", "");
    let done = start();
    assert!(done.code == Some(1) && done.err.contains("check the quota"), "{}", done.err);
}

#[test]
fn spot_machines_that_are_taken_back_are_asked_for_again_until_the_hours_are_over() {
    let f = Folder::new("cloud-spot");
    write(&f, "tpu-vm mlp --slice v5e-16 --spot --bucket gs://my-runs -- --batch-size 64", "job").ok();
    let start = || {
        let mut command = bash(&f, "job", "run.sh");
        command.env("MACHINES", "systole-mlp:4");
        run(command)
    };
    // Taken back at once; told to stop; done.
    stub(&f, &["taken", "stopped", "ok"]);
    let done = start().ok();
    assert_eq!(done.err.matches("were preempted").count(), 2, "{}", done.err);
    let told = calls(&f);
    assert_eq!((told.matches("/queuedResources?").count(), told.matches("systole train").count()), (3, 12));
    assert_eq!(fs::read_to_string(f.path("stub/bucket/systole-mlp/log.csv")).unwrap().lines().count(), 12);
    assert!(!f.path("stub/machines").exists());

    // An error of its own comes again: nothing is asked for another time.
    stub(&f, &["error", "ok"]);
    let done = start();
    assert!(done.code == Some(1) && done.err.contains("the run failed"), "{}", done.err);
    assert_eq!(calls(&f).matches("/queuedResources?").count(), 1);

    // When the hours are over the run is saved, and what the guard ends is not taken for a machine that was taken back.
    let script = fs::read_to_string(f.path("job/run.sh")).unwrap();
    fs::write(f.path("job/run.sh"), script.replace("MAX_HOURS=8\n", "MAX_HOURS=0\n")).unwrap();
    stub(&f, &["slow", "ok"]);
    let done = start();
    assert!(
        done.code == Some(1) && done.err.contains("the time limit of 0 hours is reached"),
        "{}",
        done.err
    );
    assert_eq!(calls(&f).matches("/queuedResources?").count(), 1);
    assert!(f.path("stub/bucket/systole-mlp/saved").exists() && !f.path("stub/machines").exists());
}

#[test]
fn several_slices_are_told_who_they_are() {
    let f = Folder::new("cloud-slices");
    let line = "tpu-vm mlp --slice v5e-16 --num-slices 2 --bucket gs://my-runs -- --batch-size 64";
    write(&f, line, "job").ok();
    stub(&f, &["ok"]);
    let mut command = bash(&f, "job", "run.sh");
    command.env("MACHINES", "systole-mlp-0:4 systole-mlp-1:4");
    run(command).ok();
    let told = calls(&f);
    for slice in [0, 1] {
        assert_eq!(told.matches(&format!("| 10.0.0.2 8081 2 {slice}\n")).count(), 4, "{told}");
    }
    let body: serde_json::Value = serde_json::from_slice(&fs::read(f.path("stub/body")).unwrap()).unwrap();
    let several = &body["tpu"]["nodeSpec"][0]["multisliceParams"];
    assert_eq!((&several["nodeCount"], &several["nodeIdPrefix"]), (&2.into(), &"systole-mlp".into()));
}

#[test]
fn slurm_queues_again_what_was_taken_back_and_nothing_else() {
    let f = Folder::new("cloud-slurm");
    write(&f, "slurm mine.toml --slice 2*a100", "job").ok();
    write(&f, "slurm mlp --slice 4*cpu --nodes 2 -- --batch-size 64", "nodes").ok();
    let submit = |folder: &str, plan: &[&str]| {
        stub(&f, plan);
        let mut command = bash(&f, folder, "-c");
        command.arg("exec sbatch job.sh");
        run(command)
    };
    for (plan, code, queued) in [
        (&["ok"][..], 0, 0),
        (&["stopped", "stopped", "ok"], 0, 2),
        (&["stopped", "error"], 1, 1),
        (&["crash"], 139, 0),
        (&["error"], 1, 0),
    ] {
        let done = submit("job", plan);
        assert_eq!(done.code, Some(code), "{plan:?}: {}", done.err);
        assert_eq!(calls(&f).matches("scontrol requeue 77").count(), queued, "{plan:?}");
    }
    let told = calls(&f);
    let srun = "srun --kill-on-bad-exit=0 --wait=0 --cpus-per-task=16 systole launch --slurm --max-restarts=3 -- train mine.toml";
    assert!(told.contains(srun) && told.matches("systole launch --slurm").count() == 2, "{told}");
    assert!(f.path("job/systole-mine-77.log").exists());
    // One task on each of several machines.
    submit("nodes", &["stopped", "ok"]).ok();
    let told = calls(&f);
    let train = "systole launch --slurm --max-restarts=3 --show=0 -- train mlp --out systole-mlp --strategy=data_parallel";
    assert_eq!((told.matches(train).count(), told.matches("scontrol").count()), (6, 1), "{told}");
    // Two minutes before its time is over SLURM stops it, too: then it does not queue by itself.
    let script = fs::read_to_string(f.path("job/job.sh")).unwrap();
    fs::write(f.path("job/job.sh"), script.replace("\nHOURS=8\n", "\nHOURS=0\n")).unwrap();
    let done = submit("job", &["stopped"]);
    assert!(done.code == Some(143) && !calls(&f).contains("scontrol"), "{}", done.err);
    let log = fs::read_to_string(f.path("job/systole-mine-77.log")).unwrap();
    assert!(log.contains("0 hours is reached; sbatch job.sh resumes"), "{log}");
}

/// What a container is told and runs, of a JobSet as it stands here: variables, and words.
fn container(jobset: &str) -> (Vec<(String, String)>, Vec<String>) {
    let value = |line: &str| line.split_once(": ").unwrap().1.trim_matches('"').to_string();
    let lines: Vec<&str> = jobset.lines().map(str::trim).collect();
    let after = |name: &str| lines.iter().position(|line| *line == name).unwrap() + 1;
    let words = lines[after("command:")..].iter().map_while(|line| line.strip_prefix("- "));
    let words: Vec<String> = words.map(|word| word.trim_matches('"').to_string()).collect();
    let mut variables: Vec<(String, String)> = Vec::new();
    for line in lines[after("env:")..].iter().take_while(|line| **line != "ports:") {
        match line.split(':').next().unwrap() {
            "- name" => variables.push((value(line), String::new())),
            "value" | "fieldPath" => variables.last_mut().unwrap().1 = value(line),
            _ => {}
        }
    }
    (variables, words)
}

/// `systole launch --k8s` in each pod of the JobSets that are written here, with what Kubernetes, JobSet and GKE tell it.
#[test]
fn a_pod_of_a_jobset_is_the_process_that_its_manifest_says() {
    let f = Folder::new("cloud-jobset");
    for (golden, name, jobs, pods) in [("gke", "systole-mine", 1, 1), ("gke-spot", "systole-mlp", 2, 4)] {
        let jobset = fs::read_to_string(own("golden").join(golden).join("jobset.yaml")).unwrap();
        let (variables, words) = container(&jobset);
        assert_eq!(words[..5], ["systole", "launch", "--k8s", "--", "train"]);
        // The process itself ends at once, whatever devices there are: it is asked for what there is not.
        let wrong = ["--set=nothing=1".to_string()];
        let words: Vec<String> =
            words.iter().map(|word| word.replace("/runs/", "runs/")).chain(wrong).collect();
        let told = |job: usize, pod: usize, without: &str| {
            let mut command = f.command(&words[1..].iter().map(String::as_str).collect::<Vec<_>>());
            for (variable, value) in variables.iter().filter(|(variable, _)| variable != without) {
                let noted = value.trim_start_matches("metadata.annotations['jobset.sigs.k8s.io/");
                command.env(
                    variable,
                    match noted.trim_end_matches("']") {
                        "jobset-name" => name.into(),
                        "replicatedjob-name" => "slice".into(),
                        "replicatedjob-replicas" => jobs.to_string(),
                        "job-index" => job.to_string(),
                        other => other.to_string(),
                    },
                );
            }
            let hosts: Vec<String> =
                (0..pods).map(|pod| format!("{name}-slice-{job}-{pod}.{name}")).collect();
            command.env("JOB_COMPLETION_INDEX", pod.to_string()).env("TPU_WORKER_ID", pod.to_string());
            command.env("TPU_WORKER_HOSTNAMES", hosts.join(",")).env("TPU_SKIP_MDS_QUERY", "true");
            command.env("HOSTNAME", format!("{name}-slice-{job}-{pod}"));
            Done::of(command.output().unwrap(), &[golden])
        };
        for (job, pod) in [(0, 0), (jobs - 1, pods - 1)] {
            let done = told(job, pod, "");
            let index = job * pods + pod;
            assert!(done.err.contains(&format!("[{index}] error[")), "{}", done.err);
            let who =
                format!("process {index} of {}; process 0 is at {name}-slice-0-0.{name}:8476", jobs * pods);
            assert_eq!(done.err.contains(&who), jobs * pods > 1, "{who}: {}", done.err);
        }
        let done = told(0, 0, "NUM_PROCESSES");
        assert!(done.err.contains("[0] error["), "GKE's variables say it, too: {}", done.err);
        if jobs > 1 {
            for (without, says) in [
                (
                    "REPLICATED_JOB_NAME",
                    "process 7 of 8; process 0 is at systole-mlp-slice-0-0.systole-mlp:8476",
                ),
                ("JOBSET_NAME", "process 7 of 8; process 0 is at systole-mlp-slice-0-0.systole-mlp:8476"),
                ("REPLICATED_JOB_REPLICAS", "process 7 of 8"),
                ("JOB_INDEX", "process 7 of 8"),
            ] {
                let done = told(1, 3, without);
                assert!(done.err.contains(says), "{without}: {}", done.err);
            }
        }
    }
}

#[test]
fn jobs_of_gke_and_vertex_are_sent_followed_and_deleted() {
    let f = Folder::new("cloud-jobs");
    let image = "--bucket gs://my-runs --image example.com/systole:1";
    write(&f, &format!("gke mlp --slice v5e-16 --num-slices 2 {image} -- --batch-size 64"), "gke").ok();
    for (state, code, says) in [
        ("systole-mlp/Completed", 0, "done: "),
        ("systole-mlp/Failed", 1, "the run failed"),
        ("", 1, "was deleted"),
    ] {
        stub(&f, &["ok"]);
        if !state.is_empty() {
            f.write("stub/state", state);
        }
        let mut command = bash(&f, "gke", "run.sh");
        command.env("CLUSTER", "mine");
        let done = run(command);
        assert!(done.code == Some(code) && done.err.contains(says), "{state}: {}", done.err);
        let told = calls(&f);
        assert!(
            told.contains("kubectl apply -f jobset.yaml") && told.contains("kubectl delete -f jobset.yaml")
        );
        // Its text is on no command line.
        let secret =
            "kubectl create secret generic systole-mlp --namespace=default --from-file=secret=/dev/stdin";
        assert!(told.contains(secret) && told.contains("kubectl delete secret systole-mlp "), "{told}");
        for pool in ["systole-mlp-0", "systole-mlp-1"] {
            assert!(
                told.contains(&format!("node-pools delete {pool} --cluster=mine --location=us-central1")),
                "{told}"
            );
            assert!(!f.path("stub").join(format!("pool-{pool}")).exists());
        }
    }
    write(&f, &format!("vertex mine.toml --slice v5e-8 {image}"), "vertex").ok();
    for (state, code, says) in
        [("JOB_STATE_SUCCEEDED", 0, "done: "), ("JOB_STATE_FAILED", 1, "ended before the run was complete")]
    {
        stub(&f, &["ok"]);
        f.write("stub/state", state);
        let done = run(bash(&f, "vertex", "run.sh"));
        assert!(done.code == Some(code) && done.err.contains(says), "{state}: {}", done.err);
        assert!(calls(&f).contains("storage cp mine.toml gs://my-runs/systole-mine/mine.toml"));
        run(bash(&f, "vertex", "delete.sh")).ok();
        assert!(calls(&f).contains("custom-jobs cancel projects/12345/locations/us-central1/customJobs/678"));
    }
}

#[test]
fn a_job_of_ray_runs_the_program_once_on_each_machine() {
    let Some(python) = python("ray") else { return };
    let f = Folder::new("cloud-ray");
    write(
        &f,
        "ray mlp --slice v4-32 --num-slices 2 --bucket gs://my-runs --max-hours 1 -- --batch-size 64",
        "tpu",
    )
    .ok();
    write(&f, "ray mine.toml --slice 2*h100 --max-hours 1", "gpu").ok();
    write(&f, "ray mlp --slice v4-32 --spot --bucket gs://my-runs -- --batch-size 64", "spot").ok();
    let start = |folder: &str, plan: &[&str]| {
        stub(&f, plan);
        fs::create_dir_all(f.path("stub/runs")).unwrap();
        let mut command = bash(&f, folder, "-c");
        command.arg(format!("exec {} job.py", python.display()));
        command
            .env("PYTHONPATH", own("stub"))
            .env("SYSTOLE_RUNS", f.path("stub/runs"))
            .env("HOME", f.path("stub"));
        run(command)
    };
    start("tpu", &["ok"]).ok();
    let told = calls(&f);
    for slice in [0, 1] {
        assert_eq!(told.matches(&format!("| 10.0.0.7 8081 2 {slice}\n")).count(), 4, "{told}");
        let asked = format!("task {{\"num_cpus\": 1, \"resources\": {{\"TPU\": 4, \"slice-{slice}\": 1}}}}");
        assert_eq!(told.matches(&asked).count(), 4, "{told}");
    }
    assert_eq!(
        told.matches("actor {\"num_cpus\": 0, \"resources\": {\"TPU-v4-32-head\": 1}}").count(),
        2,
        "{told}"
    );
    start("gpu", &["ok"]).ok();
    assert!(calls(&f).contains("task {\"num_cpus\": 1, \"num_gpus\": 2}"), "{}", calls(&f));
    assert!(f.path("stub/runs/systole-mine/log.csv").exists());
    let done = start("gpu", &["error"]);
    assert!(done.code == Some(1) && done.err.contains("failed on its machines: [1]"), "{}", done.err);
    // Machines that are taken back are waited for; the hours hold for all attempts.
    let done = start("spot", &["stopped", "ok"]).ok();
    assert!(
        done.out.contains("preempted") && calls(&f).matches("systole train").count() == 8,
        "{}",
        calls(&f)
    );
    for folder in ["gpu", "spot"] {
        let script = fs::read_to_string(f.path(folder).join("job.py")).unwrap();
        let hours = if folder == "gpu" { "3600" } else { "28800" };
        let short = script.replace(&format!("MAX_SECONDS = {hours}\n"), "MAX_SECONDS = 1\n");
        assert_ne!(short, script);
        fs::write(f.path(folder).join("job.py"), short).unwrap();
        let done = start(folder, &["slow", "ok"]);
        assert!(done.code == Some(1) && done.err.contains("time limit reached"), "{}", done.err);
        assert_eq!(calls(&f).matches("systole train").count(), if folder == "gpu" { 1 } else { 4 });
    }
}

/// Kubernetes's own schemas and our table of JobSet's fields; nbformat's schema; hadolint's rules.
#[test]
fn files_fit_the_schemas_of_others() {
    let Some(python) = python("schemas") else { return };
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for (what, told) in [
        ("manifests", "11 objects of Kubernetes"),
        ("notebooks", "9 notebooks by nbformat"),
        ("dockerfiles", "5 Dockerfiles by hadolint"),
    ] {
        let mut command = Command::new(&python);
        command.arg(root.join("fixtures/cloud/validate.py")).args(["--only", what]).arg(own("golden"));
        command.args([root.join("notebooks"), root.join("packaging")]);
        let done = Done::of(command.output().unwrap(), &["validate.py"]).ok();
        match done.out.lines().find(|line| line.starts_with("SKIPPED")) {
            Some(line) => println!("{line}"),
            None => assert!(done.out.contains(told), "{}", done.out),
        }
    }
}

/// What is refused, and what is said of it.
const MISTAKES: [(&str, &[&str]); 39] = [
    ("aws mlp --slice v5e-8", &["`aws`"]),
    ("tpu-vm nothing --slice v5e-8", &["`nothing`", "MODEL"]),
    ("tpu-vm mlp --slice v5e-7", &["`v5e-7`", "v5litepod-8", "--slice"]),
    ("tpu-vm mlp --slice 0*h100", &["`0*h100`", "8*h100"]),
    ("tpu-vm mlp --slice h100", &["h100", "v5e-8"]),
    ("tpu-vm mlp --slice v5e-8 --region mars", &["`mars`", "us-central1"]),
    (
        "tpu-vm mlp --slice v3-32 --region us-central1 --bucket gs://my-runs",
        &["v3-32", "us-central1", "europe-west4"],
    ),
    ("tpu-vm mlp --slice v5e-8 --zone mars", &["`mars`", "us-central1-a"]),
    ("tpu-vm mlp --slice v5e-8 --region us-west4 --zone us-west1-c", &["`us-west1-c`"]),
    ("tpu-vm mlp --slice tpu7x-2x2x1", &["tpu7x", "systole cloud gke"]),
    ("tpu-vm mlp --slice v5e-8 --spot", &["--bucket", "gs://NAME"]),
    ("tpu-vm mlp --slice v5e-16", &["--bucket", "--bucket gs://NAME"]),
    ("tpu-vm mlp --slice v5e-16 --bucket my-runs", &["`my-runs`", "gs://NAME"]),
    ("tpu-vm mlp --slice v5e-16 --bucket gs://a/b", &["`gs://a/b`"]),
    ("tpu-vm mlp --slice v5e-8 --num-slices 2 --bucket gs://my-runs", &["--num-slices", "v5e:4x4"]),
    (
        "tpu-vm mlp --slice 2*v5e-16 --num-slices 3 --bucket gs://my-runs",
        &["--slice v5litepod-16 --num-slices 3"],
    ),
    ("tpu-vm mlp --slice v5e-8 --name My_Run", &["`My_Run`", "--name"]),
    ("tpu-vm mlp --slice v5e-8 --image x", &["--image"]),
    ("tpu-vm mine.toml --slice v5p-2048 --bucket gs://my-runs", &["128", "1024", "--batch-size 1024"]),
    ("tpu-vm mlp --slice v5e-8 -- --epoch 3", &["--epoch", "systole help train"]),
    ("tpu-vm mlp --slice v5e-8 -- --out x", &["--out"]),
    ("gke mlp --slice v5e-8 --bucket gs://my-runs", &["--image ADDRESS"]),
    ("gke mlp --slice v2-8 --bucket gs://my-runs --image x", &["v2", "systole cloud tpu-vm"]),
    ("gke mlp --slice v5e-8 --image x", &["--bucket"]),
    ("vertex mlp --slice v5e-16 --spot --bucket gs://my-runs --image x", &["--spot"]),
    ("vertex mlp --slice v5e-16 --num-slices 2 --bucket gs://my-runs --image x", &["--num-slices"]),
    ("slurm mlp --slice h100-4", &["`h100-4`", "4*h100"]),
    ("ray mlp --slice 8xA100", &["8*a100"]),
    ("slurm mlp --slice v5e-8", &["v5litepod-8", "8*h100", "16*cpu"]),
    ("slurm mlp --slice 8*h100 --nodes 2", &["h100", "--slice 16*cpu --nodes 2"]),
    ("slurm mlp --slice v5e-16 --nodes 2", &["--nodes"]),
    ("slurm mine.toml --slice 16*cpu --nodes 3", &["128", "3", "--batch-size 129"]),
    ("slurm mlp --slice no*cpu", &["`no*cpu`", "16*cpu"]),
    ("tpu-vm mlp --slice v5e-8 --nodes 2", &["--nodes"]),
    ("ray mlp --slice 16*cpu", &["--slice", "systole cloud slurm"]),
    ("slurm mlp --slice h100 --spot", &["--spot"]),
    ("colab mlp --slice v5e-8", &["v5e-8", "v5e-1", "t4"]),
    ("kaggle mlp --slice v5e-8 --spot", &["--spot"]),
    ("ray mlp --slice h100 --num-slices 2", &["--num-slices", "8*h100"]),
];

#[test]
fn mistakes_are_told_before_anything_is_written() {
    let f = Folder::new("cloud-mistakes");
    for (line, names) in MISTAKES {
        write(&f, line, "out").fails("usage", names);
        assert!(!f.path("out").exists(), "{line}");
    }
    f.write("full/notes.txt", "mine");
    write(&f, "tpu-vm mlp --slice v5e-8", "full").fails("io", &["`full`", "notes.txt", "--out"]);
    assert_eq!(f.files("full"), ["notes.txt"]);
    // A zone that the table does not know is taken at the user's word, and an empty folder is none that is full.
    fs::create_dir(f.path("empty")).unwrap();
    let done = write(&f, "tpu-vm mlp --slice v5e-8 --zone asia-east9-b --json", "empty").ok().json();
    assert_eq!(
        (&done["zone"], &done["dollars_per_hour"]),
        (&"asia-east9-b".into(), &serde_json::Value::Null)
    );
    assert_eq!((&done["machines"], done["files"].as_array().unwrap().len()), (&1.into(), 4));
}

/// Arguments of `cloud tpu-vm` for data that the machines do not have, and what is said of them.
const ABSENT: [(&str, &[&str]); 8] = [
    ("mlp --slice v5e-8", &["`mlp`", "--synthetic"]),
    ("mine.toml --slice v5e-8", &["mine.toml", "--synthetic"]),
    ("gpt2-small --slice v5e-8", &["`gpt2-small`", "-- --data-dir PATH", "--synthetic"]),
    ("resnet50 --slice v5e-8", &["`cifar10`", "-- --data-dir PATH", "--synthetic"]),
    ("cifar-cnn --slice v5e-8 -- --synthetic", &["`cifar-cnn`", "--synthetic"]),
    ("folder --slice v5e-8", &["`folder`", "-- --data-dir PATH"]),
    ("folder --slice v5e-8 --synthetic", &["`folder`"]),
    ("mnist --slice v5e-8 --synthetic", &["`mnist`", "--synthetic"]),
];

#[test]
fn nothing_is_rented_for_synthetic_data_unasked() {
    let f = Folder::new("cloud-synthetic");
    fs::copy(own("mine.toml"), f.path("mine.toml")).unwrap();
    let cloud = |line: &str, out: &str| {
        let (ours, theirs) = line.split_once(" -- ").map_or((line, None), |(a, b)| (a, Some(b)));
        let mut args = vec!["cloud", "tpu-vm", "--out", out];
        args.extend(ours.split(' '));
        theirs.iter().for_each(|words| args.extend(["--"].into_iter().chain(words.split(' '))));
        f.run(&args)
    };
    for (line, names) in ABSENT {
        cloud(line, "out").fails("usage", names);
        assert!(!f.path("out").exists(), "{line}");
    }
    for (i, line) in [
        "gpt2-small --slice v5e-4 --synthetic",
        "cifar-cnn --slice v5e-8",
        "cifar-cnn --slice v5e-8 --synthetic -- --synthetic",
        "mlp --slice v5e-8 --synthetic",
        "gpt2-small --slice v5e-4 -- --data-dir runs/my.txt",
        "folder --slice v5e-8 -- --data-dir runs/album",
        "fashion-mnist --slice v5e-8",
    ]
    .into_iter()
    .enumerate()
    {
        cloud(line, &format!("job{i}")).ok();
    }
}
