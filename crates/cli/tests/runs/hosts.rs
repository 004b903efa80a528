//! Multi-host training tests: several processes, as the hosts of one slice, train like one process with all devices.
//!
//! The devices come from Systole's own plugin and communicate over TCP. Nothing here has run on a TPU pod.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use crate::program::{Done, Folder, TINY};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The workspace's own plugin, which `cargo test --workspace` builds.
fn plugin(test: &str) -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    let found = exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file());
    if found.is_none() {
        println!("SKIPPED {test}: `cargo build -p systole-plugin` was not run");
    }
    found
}

/// A slice of four devices.
struct Slice<'f> {
    folder: &'f Folder,
    device: String,
}

impl<'f> Slice<'f> {
    fn new(folder: &'f Folder, plugin: &std::path::Path) -> Slice<'f> {
        Slice { folder, device: format!("--device=pjrt:{}", plugin.display()) }
    }

    fn train(&self, options: &str, out: &str, more: &[&str]) -> Command {
        let args = ["train", "fashion-mnist", "--data-dir=data", "--out", out, "--json", &self.device];
        let mut command = self.folder.command(&[&args[..], &TINY[..], more].concat());
        command.env("SYSTOLE_PJRT_OPTIONS", options).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// One process with all devices.
    fn alone(&self, out: &str, more: &[&str]) -> Done {
        Done::of(self.train("num_devices=4", out, more).output().unwrap(), more)
    }

    /// Two processes with two devices each, with these arguments.
    fn start(&self, out: &str, more: &[&str]) -> Hosts {
        self.start_each([(out, more), (out, more)])
    }

    fn start_each(&self, hosts: [(&str, &[&str]); 2]) -> Hosts {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let start = |process: usize| {
            let options = format!(
                "num_devices=2,num_processes=2,process_id={process},coordinator_address={address},timeout_seconds=120"
            );
            let (out, more) = hosts[process];
            self.train(&options, out, more).spawn().unwrap()
        };
        Hosts([0, 1].map(start))
    }

    fn model(&self, out: &str) -> Vec<u8> {
        std::fs::read(self.folder.path(out).join("fashion-mnist.safetensors")).unwrap()
    }

    /// Waits until some of a run is saved.
    fn wait_for_backup(&self, out: &str) {
        let saved = |name: &String| name.ends_with(".safetensors");
        let until = Instant::now() + Duration::from_secs(300);
        while !self.folder.files(&format!("{out}/backups")).iter().any(saved) {
            assert!(Instant::now() < until, "nothing is saved in {out}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Hosts([Child; 2]);

impl Hosts {
    fn kill(&mut self, host: usize) {
        self.0[host].kill().unwrap();
    }

    fn terminate(&self, host: usize) {
        let done = Command::new("kill").arg("-TERM").arg(self.0[host].id().to_string()).status().unwrap();
        assert!(done.success());
    }

    fn wait(self) -> [Done; 2] {
        let mut number = 0..;
        self.0
            .map(|child| Done::of(child.wait_with_output().unwrap(), &[&format!("host {:?}", number.next())]))
    }
}

const STRATEGIES: [&str; 2] = ["--strategy=data_parallel", "--strategy=fully_sharded"];

#[test]
fn two_hosts_of_two_devices_train_as_one_process_with_four() {
    let Some(plugin) = plugin("two_hosts_of_two_devices_train_as_one_process_with_four") else { return };
    let f = Folder::with_data("hosts");
    let slice = Slice::new(&f, &plugin);
    for (k, strategy) in STRATEGIES.into_iter().enumerate() {
        let out = |name: &str| format!("{name}{k}");
        let whole = slice.alone(&out("whole"), &[strategy]).ok().json();
        let hosts = slice.start(&out("hosts"), &[strategy]).wait();
        for (index, done) in hosts.into_iter().enumerate() {
            let o = done.ok().json();
            for key in ["history", "loss", "val_loss", "total_steps", "total_epochs"] {
                assert_eq!(o[key], whole[key], "{strategy}, host {index}: {key}");
            }
            assert_eq!((&o["host"]["index"], &o["host"]["count"]), (&index.into(), &2.into()), "{o}");
        }
        assert!(slice.model(&out("hosts")) == slice.model(&out("whole")), "{strategy}");
    }
    // What one strategy saved goes on under another.
    let more = ["--from=hosts0/fashion-mnist.safetensors", STRATEGIES[1]];
    slice.alone("more whole", &more).ok();
    for done in slice.start("more hosts", &more).wait() {
        done.ok();
    }
    assert!(slice.model("more hosts") == slice.model("more whole"));
    assert!(slice.model("more hosts") != slice.model("hosts0"));
}

/// A run of three epochs of 60 steps, saved as often as can be.
const LONG: [&str; 3] = ["--set=fit.epochs=3", "--set=fit.steps_per_epoch=60", "--save-steps=1"];

#[test]
fn hosts_that_are_killed_or_stopped_go_on_to_the_same_bits() {
    let Some(plugin) = plugin("hosts_that_are_killed_or_stopped_go_on_to_the_same_bits") else { return };
    let f = Folder::with_data("hosts-killed");
    let slice = Slice::new(&f, &plugin);
    let args = [&LONG[..], &STRATEGIES[1..]].concat();
    let start = |out: &str| slice.start(out, &args);
    let whole = slice.alone("whole", &args).ok().json();

    let mut hosts = start("killed");
    slice.wait_for_backup("killed");
    [0, 1].into_iter().for_each(|host| hosts.kill(host));
    hosts.wait();
    let [first, second] = start("killed").wait().map(|done| done.ok().json());
    assert!(
        first["resumed_at"]["step"].is_number() && first["resumed_at"] == second["resumed_at"],
        "{first}"
    );
    assert!(slice.model("killed") == slice.model("whole"));
    assert_eq!((&first["history"], &second["history"]), (&whole["history"], &whole["history"]));

    // A signal to one ends both after the same step.
    let hosts = start("stopped");
    slice.wait_for_backup("stopped");
    hosts.terminate(1);
    let ended = hosts.wait();
    let codes = ended.each_ref().map(|done| done.code);
    assert_eq!(codes, [Some(143); 2], "{}\n{}", ended[0].err, ended[1].err);
    let [first, second] = ended.map(|done| done.json());
    assert_eq!((&first["interrupted"], &first["total_steps"]), (&true.into(), &second["total_steps"]));
    assert!(first["total_steps"].as_u64() < Some(180), "{first}");
    for done in start("stopped").wait() {
        done.ok();
    }
    assert!(slice.model("stopped") == slice.model("whole"));
}

#[test]
fn who_loses_its_partner_says_so_and_ends() {
    let Some(plugin) = plugin("who_loses_its_partner_says_so_and_ends") else { return };
    let f = Folder::with_data("hosts-lost");
    let slice = Slice::new(&f, &plugin);
    for lost in [0, 1] {
        let out = format!("lost{lost}");
        let mut hosts = slice.start(&out, &LONG);
        slice.wait_for_backup(&out);
        hosts.kill(lost);
        let [first, second] = hosts.wait();
        let left = if lost == 0 { second } else { first };
        left.fails("unsupported", &[&lost.to_string(), "2", "PJRT_LoadedExecutable_Execute"]);
    }
}

/// What a launch has printed so far, and the processes that it told of.
struct Launched {
    launcher: Child,
    told: std::io::Lines<BufReader<std::process::ChildStderr>>,
    all: Vec<String>,
}

impl Launched {
    fn new(f: &Folder, plugin: &Path, out: &str, more: &[&str], args: &[&str]) -> Launched {
        let launch = ["--nproc=2", "--devices-per-process=2"];
        Launched::of(f.command(&[]), plugin, out, &[&launch, more].concat(), args)
    }

    /// One that `command` runs, with its environment.
    fn of(mut command: Command, plugin: &Path, out: &str, more: &[&str], args: &[&str]) -> Launched {
        let plugin = format!("--plugin={}", plugin.display());
        let train = ["--", "train", "fashion-mnist", "--data-dir=data", "--out", out];
        command.args([&["launch", &plugin, "--json"], more, &train, &TINY, args].concat());
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(launcher.stderr.take().unwrap()).lines();
        Launched { launcher, told, all: Vec::new() }
    }

    /// What stands behind `mark` in the next line that has it.
    fn next(&mut self, mark: &str) -> String {
        loop {
            let line =
                self.told.next().unwrap_or_else(|| panic!("{mark} never came: {:?}", self.all)).unwrap();
            let found = line.split_once(mark).map(|(_, rest)| rest.to_string());
            self.all.push(line);
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Reads on to the processes of the next start.
    fn processes(&mut self) -> Vec<String> {
        let pids = self.next("[launch] 2 processes: ");
        pids.split(", ").map(String::from).collect()
    }

    fn wait(self) -> Done {
        let more: Vec<String> = self.told.map_while(Result::ok).collect();
        let mut output = self.launcher.wait_with_output().unwrap();
        output.stderr = [self.all, more].concat().join("\n").into_bytes();
        Done::of(output, &["launch"])
    }
}

/// Waits until a process has ended, also one that nobody waits for.
fn wait_for_end(process: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    let state = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    while state().rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')) {
        assert!(Instant::now() < until, "the process {process} goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(name: &str, process: &str) {
    // It may have ended already.
    let _ = Command::new("kill").args([name, process]).stderr(Stdio::null()).status().unwrap();
}

#[test]
fn a_launch_goes_on_after_kills_to_the_same_bits_and_forwards_signals() {
    let Some(plugin) = plugin("a_launch_goes_on_after_kills_to_the_same_bits_and_forwards_signals") else {
        return;
    };
    let f = Folder::with_data("launch");
    let slice = Slice::new(&f, &plugin);
    let args = [&LONG[..], &STRATEGIES[1..]].concat();
    let whole = slice.alone("whole", &args).ok().json();
    let kills: usize = std::env::var("SYSTOLE_LAUNCH_KILLS").map_or(2, |n| n.parse().unwrap());

    let mut launched = Launched::new(&f, &plugin, "killed", &["--max-restarts=1000"], &args);
    for kill in 0..kills {
        let pids = launched.processes();
        if kill == 0 {
            slice.wait_for_backup("killed");
        }
        // The first while it certainly trains, the others at no instant in particular.
        std::thread::sleep(Duration::from_millis((kill as u64 * 7919) % 950));
        signal("-KILL", &pids[kill % 2]);
    }
    let done = launched.wait().ok();
    let o = done.json();
    let restarts = o["restarts"].as_u64().unwrap() as usize;
    println!("{restarts} of {kills} kills met a running process");
    assert!((1..=kills).contains(&restarts), "{}", done.err);
    assert!(done.err.contains("was killed by signal 9: restarting all processes"), "{}", done.err);
    assert!(slice.model("killed") == slice.model("whole"));
    assert_eq!((&o["result"]["history"], &o["devices"]), (&whole["history"], &4.into()), "{o}");
    let log = std::fs::read_to_string(f.path(o["log"].as_str().unwrap())).unwrap();
    assert_eq!(o["log"], "killed/launch.log");
    for part in [" [0] ", " [1] ", "[launch] 2 processes", "was killed by signal 9", "\"history\""] {
        assert!(log.contains(part), "{part}: {log}");
    }

    // One signal to the launch stops all after the same step; a later start goes on.
    let mut launched = Launched::new(&f, &plugin, "stopped", &[], &args);
    launched.processes();
    slice.wait_for_backup("stopped");
    signal("-TERM", &launched.launcher.id().to_string());
    let stopped = launched.wait();
    assert_eq!(stopped.code, Some(143), "{}", stopped.err);
    assert_eq!(stopped.json()["result"]["interrupted"], true);
    Launched::new(&f, &plugin, "stopped", &[], &args).wait().ok();
    assert!(slice.model("stopped") == slice.model("whole"));

    // Without restarts a death is an error; what a process says itself is not tried again.
    let mut launched = Launched::new(&f, &plugin, "dead", &[], &args);
    let pids = launched.processes();
    signal("-KILL", &pids[1]);
    launched.wait().fails("io", &["9", "--max-restarts"]);
    let quietly = ["--max-restarts=3", "--show=none", "--log=wrong.log"];
    let wrong = Launched::new(&f, &plugin, "wrong", &quietly, &["--set=fit.batch_size=0"]).wait();
    assert_eq!((wrong.code, wrong.err.matches("2 processes").count()), (Some(2), 1), "{}", wrong.err);
    // Errors are shown always.
    assert!(wrong.err.contains("[1] error[usage]: ") && wrong.err.contains("[1]   where: "), "{}", wrong.err);
    assert!(std::fs::read_to_string(f.path("wrong.log")).unwrap().contains("[0] error[usage]: "));
    f.run(&["launch", "--nproc=2", "--", "plan", "mlp"]).fails("usage", &["`plan`"]);
}

/// Secrets in the environments of processes, which are on none of their command lines.
#[cfg(target_os = "linux")]
fn secrets(processes: &[String]) -> Vec<String> {
    let read = |process: &String, file: &str| {
        String::from_utf8_lossy(&std::fs::read(format!("/proc/{process}/{file}")).unwrap()).into_owned()
    };
    let secret_of = |process: &String| {
        let environment = read(process, "environ");
        environment.split('\0').find_map(|v| v.strip_prefix("SYSTOLE_SECRET=")).map(String::from)
    };
    let one = |process: &String| {
        // A process that was just forked still has the launcher's environment.
        let mut secret = secret_of(process);
        for _ in 0..500 {
            if secret.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            secret = secret_of(process);
        }
        let secret = secret.unwrap();
        assert!(secret.len() == 64 && !read(process, "cmdline").contains(&secret), "{secret}");
        secret
    };
    processes.iter().map(one).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn processes_end_with_their_launcher_and_the_folder_is_free() {
    let test = "processes_end_with_their_launcher_and_the_folder_is_free";
    let Some(plugin) = plugin(test) else { return };
    let f = Folder::with_data("launch-ended");
    let slice = Slice::new(&f, &plugin);
    let args = [&SHORTER[..], &STRATEGIES[1..]].concat();
    slice.alone("whole", &args).ok();
    let mut all_secrets = Vec::new();
    for name in ["-HUP", "-TERM", "-KILL"] {
        let out = format!("out{name}");
        let start = || Launched::new(&f, &plugin, &out, &[], &args);
        let mut launched = start();
        let pids = launched.processes();
        // One secret for all processes of a launch.
        let own = secrets(&pids);
        assert_eq!(own[0], own[1]);
        all_secrets.push(own[0].clone());
        slice.wait_for_backup(&out);
        let launcher = launched.launcher.id().to_string();
        signal(name, &launcher);
        if name == "-HUP" {
            // The shell tells it, and then the kernel.
            signal(name, &launcher);
        }
        let ended = launched.wait();
        pids.iter().for_each(|pid| wait_for_end(pid));
        if name != "-KILL" {
            assert_eq!(ended.code, Some(143), "{name}: {}", ended.err);
            assert_eq!(ended.json()["result"]["interrupted"], true, "{name}");
        }
        let again = start().wait().ok().json();
        assert!(again["result"]["resumed_at"]["step"].is_number(), "{name}: {again}");
        assert!(slice.model(&out) == slice.model("whole"), "{name}");
        let report = std::fs::read_to_string(f.path(&out).join("report.html")).unwrap();
        assert!(report.contains("SYSTOLE_SECRET=set") && !report.contains("end-with-stdin"));
        assert!(all_secrets.iter().all(|secret| !report.contains(secret)));
    }
    all_secrets.sort();
    all_secrets.dedup();
    assert_eq!(all_secrets.len(), 3, "every launch has a secret of its own");

    // After nohup, the end of the terminal ends nothing.
    let usual = f.command(&[]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_systole")]);
    command.current_dir(usual.get_current_dir().unwrap()).stdin(Stdio::null());
    for (name, value) in usual.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let two = ["--nproc=2", "--devices-per-process=2"];
    let mut launched = Launched::of(command, &plugin, "kept", &two, &args);
    let pids = launched.processes();
    slice.wait_for_backup("kept");
    let all = [&[launched.launcher.id().to_string()], &pids[..]].concat();
    all.iter().for_each(|process| signal("-HUP", process));
    launched.wait().ok();
    assert!(slice.model("kept") == slice.model("whole"));
}

/// Text of a secret.
const SECRET: &str = "known to the processes of this test";

#[test]
fn strangers_without_the_secret_are_refused_and_the_run_goes_on() {
    let test = "strangers_without_the_secret_are_refused_and_the_run_goes_on";
    let Some(plugin) = plugin(test) else { return };
    let f = Folder::with_data("hosts-strangers");
    let slice = Slice::new(&f, &plugin);
    slice.alone("whole", &STRATEGIES[1..]).ok();
    let port = free_port();
    let host = |process: u8, address: &str, secret: &str| {
        let options = format!(
            "num_devices=2,num_processes=2,process_id={process},coordinator_address={address}:{port},timeout_seconds=120"
        );
        let mut command = slice.train(&options, "out", &STRATEGIES[1..]);
        command.env("SYSTOLE_SECRET", secret).spawn().unwrap()
    };
    let wait = |child: Child| Done::of(child.wait_with_output().unwrap(), &["host"]);
    // Without a secret, nobody on other machines can connect.
    wait(host(0, "0.0.0.0", "")).fails("unsupported", &["0.0.0.0", "SYSTOLE_SECRET"]);
    wait(host(0, "127.0.0.1", "short")).fails("config", &["SYSTOLE_SECRET", "5", "16"]);

    let first = host(0, "0.0.0.0", SECRET);
    let until = Instant::now() + Duration::from_secs(60);
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(e) => assert!(Instant::now() < until, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let numbers: Vec<u8> = [1u64, 2, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
    let silent = connect();
    // The greeting of process 1, as every process of this program sends it: of the version before, and with a false proof.
    connect().write_all(&[&b"systole hosts 1\n"[..], &numbers].concat()).unwrap();
    let mut liar = connect();
    liar.write_all(&[&b"systole hosts 2\n"[..], &[7; 32], &numbers, &[7; 32]].concat()).unwrap();
    let mut reply = Vec::new();
    let _ = liar.read_to_end(&mut reply);
    assert_eq!(reply.len(), 16 + 32 + 32, "a challenge and no more than a rejection");
    assert!(reply.ends_with(&[0; 32]));
    for secret in ["", "known to the processes of other tests"] {
        wait(host(1, "127.0.0.1", secret)).fails("unsupported", &["127.0.0.1", "SYSTOLE_SECRET"]);
    }
    let second = host(1, "127.0.0.1", SECRET);
    let [first, second] = [first, second].map(|child| wait(child).ok());
    drop(silent);
    assert!(slice.model("out") == slice.model("whole"));
    let told = "note: process 0 rejected 4 connections: 1 from 127.0.0.1 (not a process of this version), 3 from 127.0.0.1 (wrong secret)";
    assert!(first.err.contains(told), "{}", first.err);
    assert!([&first, &second].iter().all(|done| !done.err.contains(SECRET) && !done.out.contains(SECRET)));

    // Launchers that a cluster starts cannot agree on a random one.
    let train = ["launch", "--k8s", "--nproc=2", "--", "train", "glyphs"];
    let mut command = f.command(&train);
    command.envs([("JOB_COMPLETION_INDEX", "1"), ("COORDINATOR_ADDRESS", "127.0.0.1")]);
    command.env("SYSTOLE_PJRT_PLUGIN", &plugin);
    let done = Done::of(command.output().unwrap(), &train);
    done.fails("usage", &["SYSTOLE_SECRET"]);
    let mut command = f.command(&["knobs"]);
    let knobs = Done::of(command.env("SYSTOLE_SECRET", SECRET).output().unwrap(), &["knobs"]).ok();
    assert!(knobs.out.contains("SYSTOLE_SECRET") && !knobs.out.contains(SECRET), "{}", knobs.out);
}

/// A run of two epochs of 40 steps, saved as often as can be.
const SHORTER: [&str; 2] = ["--set=fit.steps_per_epoch=40", "--save-steps=1"];

/// A program that stands for ssh: machines that are down have a file of that name, and the others are this one.
const SSH: &str =
    "#!/bin/sh\n[ \"$1\" = -T ] || exit 3\n[ -e \"$2.down\" ] && exit 255\nshift 2\nexec sh -c \"$*\"\n";

/// A launch on machines that are all this one, with a port of its own.
fn over_ssh(f: &Folder, plugin: &Path, out: &str, more: &[&str], args: &[&str]) -> Launched {
    let mut command = f.command(&[]);
    command.env("SYSTOLE_SSH", format!("{} -T", f.path("ssh").display()));
    let port = format!("--port={}", free_port());
    Launched::of(command, plugin, out, &[&["--hosts=hosts", &port], more].concat(), args)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[cfg(unix)]
fn make_ssh(f: &Folder) {
    use std::os::unix::fs::PermissionsExt;
    let ssh = f.write("ssh", SSH);
    std::fs::set_permissions(ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(unix)]
#[test]
fn machines_of_a_file_are_started_by_ssh_and_left_out_where_they_are_lost() {
    let test = "machines_of_a_file_are_started_by_ssh_and_left_out_where_they_are_lost";
    let Some(plugin) = plugin(test) else { return };
    let f = Folder::with_data("launch-hosts");
    make_ssh(&f);
    let slice = Slice::new(&f, &plugin);
    let args = [&SHORTER[..], &STRATEGIES[1..]].concat();
    let whole = slice.alone("whole", &args).ok().json();

    // One is killed there, and all go on to the same bits.
    f.write("hosts", "127.0.0.1\nme@127.0.0.2 slots=1  # the second\n");
    let two = ["--devices-per-process=2", "--max-restarts=1"];
    let mut launched = over_ssh(&f, &plugin, "there", &two, &args);
    let second = "[1 me@127.0.0.2] [launch-agent] process ";
    let pid = launched.next(second);
    slice.wait_for_backup("there");
    signal("-KILL", &pid);
    let done = launched.wait().ok();
    let told = "process 1 on me@127.0.0.2 was killed by signal 9: restarting all processes";
    assert!(done.err.contains(told), "{}", done.err);
    assert!(slice.model("there") == slice.model("whole"));
    assert_eq!(done.json()["result"]["history"], whole["history"]);

    // A signal to the launch stops all there after the same step, and none is left where the launch itself is killed.
    let mut launched = over_ssh(&f, &plugin, "stopped", &two, &args);
    launched.next(second);
    slice.wait_for_backup("stopped");
    signal("-TERM", &launched.launcher.id().to_string());
    let stopped = launched.wait();
    assert_eq!((stopped.code, &stopped.json()["result"]["interrupted"]), (Some(143), &true.into()));
    let mut launched = over_ssh(&f, &plugin, "stopped", &two, &args);
    let pid = launched.next(second);
    launched.launcher.kill().unwrap();
    launched.wait();
    wait_for_end(&pid);
    // The same if an agent is killed.
    let mut launched = over_ssh(&f, &plugin, "stopped", &["--devices-per-process=2"], &args);
    let pid = launched.next(second);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    signal("-KILL", status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim());
    wait_for_end(&pid);
    assert_eq!(launched.wait().code, Some(1));

    // Of four machines one is lost for good. Three do not divide the batch, two do.
    f.write("hosts", "127.0.0.1\n127.0.0.2\n127.0.0.3\n127.0.0.4\n");
    let mut launched = over_ssh(&f, &plugin, "fewer", &["--elastic", "--max-restarts=1"], &args);
    let pid = launched.next("[2 127.0.0.3] [launch-agent] process ");
    slice.wait_for_backup("fewer");
    f.write("127.0.0.3.down", "");
    signal("-KILL", &pid);
    let done = launched.wait().ok();
    let o = done.json();
    let told = "is unreachable: {ssh} exited with 255: 127.0.0.3 is dropped, and 2 processes resume";
    let told = told.replace("{ssh}", &f.path("ssh").display().to_string());
    assert!(done.err.contains("(1 of 1)") && done.err.contains(&told), "{}", done.err);
    assert_eq!((&o["processes"], &o["left_out"][0]), (&2.into(), &"127.0.0.3".into()), "{o}");
    assert_eq!(o["result"]["total_steps"], whole["total_steps"]);
    let loss = |o: &serde_json::Value| o["loss"].as_f64().unwrap();
    let (is, was) = (loss(&o["result"]), loss(&whole));
    assert!((is - was).abs() < 1e-3 * was.abs(), "the loss is {is}, on four devices all along {was}");

    // Mistakes.
    let fails = |more: &[&str], args: &[&str], kind: &str, names: &[&str]| {
        over_ssh(&f, &plugin, "wrong", more, args).wait().fails(kind, names);
    };
    fails(&["--elastic=3"], &[], "io", &["3", "16"]);
    let auto = ["`auto`", "--elastic", "--batch-size 256"];
    fails(&["--elastic"], &["--set=fit.batch_size=auto"], "usage", &auto);
    fails(&["--elastic"], &["--devices=4"], "usage", &["--elastic"]);
    f.write("hosts", "127.0.0.1\n127.0.0.3\n");
    fails(&[], &[], "io", &["127.0.0.3", "--elastic"]);
    fails(&["--program=/nowhere/systole"], &[], "config", &["127.0.0.1", "--program"]);
    fails(&["--env=NEVER_SET"], &[], "usage", &["`NEVER_SET`"]);
    f.write("hosts", "one\none\n");
    fails(&[], &[], "usage", &["hosts, line 2"]);
}

/// A process for each task of a cluster, as that starts them, with what it sets.
#[test]
fn a_task_of_a_cluster_is_the_process_that_its_surroundings_say() {
    let test = "a_task_of_a_cluster_is_the_process_that_its_surroundings_say";
    let Some(plugin) = plugin(test) else { return };
    let f = Folder::with_data("launch-tasks");
    let slice = Slice::new(&f, &plugin);
    let args = [&SHORTER[..], &STRATEGIES[1..]].concat();
    slice.alone("whole", &args).ok();
    slice.alone("short", &STRATEGIES[1..]).ok();
    let start = |out: &str, place: &str, args: &[&str], set: &dyn Fn(&mut Command, &str)| {
        let port = format!("--port={}", free_port());
        ["0", "1"].map(|task| {
            let mut command = f.command(&[]);
            command.env("SYSTOLE_SECRET", SECRET);
            set(&mut command, task);
            let more = [place, &port, "--devices-per-process=2", "--max-restarts=2"];
            Launched::of(command, &plugin, out, &more, args)
        })
    };
    let slurm = |command: &mut Command, task: &str| {
        let all = [
            ("JOB_ID", "7"),
            ("STEP_ID", "0"),
            ("NTASKS", "2"),
            ("PROCID", task),
            ("JOB_NODELIST", "127.0.0.[1-2]"),
        ];
        all.iter().for_each(|(name, value)| {
            command.env(format!("SLURM_{name}"), value);
        });
    };
    let mut tasks = start("slurm", "--slurm", &args, &slurm);
    let pid = tasks[1].next("[launch] 1 process: ");
    slice.wait_for_backup("slurm");
    signal("-KILL", &pid);
    for (index, task) in tasks.into_iter().enumerate() {
        let done = task.wait().ok();
        let o = done.json();
        assert_eq!((&o["processes"], &o["restarts"]), (&2.into(), &1.into()), "{}", done.err);
        assert_eq!(
            (&o["result"]["host"]["index"], &o["log"]),
            (&index.into(), &format!("slurm/launch-{index}.log").into())
        );
        let why = ["another process is lost", "process 1 was killed by signal 9"][index];
        assert!(done.err.contains(why), "{}", done.err);
    }
    assert!(slice.model("slurm") == slice.model("whole"));

    // SLURM sends a signal to all processes of a task, of which one is the launch.
    let mut tasks = start("stopped", "--slurm", &args, &slurm);
    let pid = tasks[1].next("[launch] 1 process: ");
    slice.wait_for_backup("stopped");
    [tasks[1].launcher.id().to_string(), pid].iter().for_each(|process| signal("-TERM", process));
    for task in tasks {
        let stopped = task.wait();
        let interrupted = &stopped.json()["result"]["interrupted"];
        assert_eq!((stopped.code, interrupted), (Some(143), &true.into()), "{}", stopped.err);
    }

    let pod = |command: &mut Command, task: &str| {
        let all =
            [("JOB_COMPLETION_INDEX", task), ("NUM_PROCESSES", "2"), ("COORDINATOR_ADDRESS", "127.0.0.1")];
        command.envs(all);
    };
    let worker = |command: &mut Command, task: &str| {
        command.envs([
            ("TPU_WORKER_ID", task),
            ("TPU_WORKER_HOSTNAMES", "127.0.0.1,127.0.0.2"),
            ("TPU_NAME", "mine"),
        ]);
    };
    for (place, set) in [("--k8s", &pod as &dyn Fn(&mut Command, &str)), ("--tpu=mine", &worker)] {
        let out = place.trim_start_matches('-');
        start(out, place, &STRATEGIES[1..], set).into_iter().for_each(|task| drop(task.wait().ok()));
        assert!(slice.model(out) == slice.model("short"), "{place}");
    }
    let train = ["--", "train", "fashion-mnist"];
    for place in ["--slurm", "--k8s", "--tpu"] {
        f.run(&[&["launch", place], &train[..]].concat()).fails("usage", &[place]);
    }
}

/// The script of `systole cloud slurm`, whole, with this program: taken back, queued again, done.
#[cfg(target_os = "linux")]
#[test]
fn a_batch_script_of_slurm_trains_on_its_machines_and_goes_on_where_it_was() {
    let Some(plugin) = plugin("a_batch_script_of_slurm_trains_on_its_machines_and_goes_on_where_it_was")
    else {
        return;
    };
    let f = Folder::with_data("launch-sbatch");
    let slice = Slice::new(&f, &plugin);
    let args = [&SHORTER[..], &STRATEGIES[1..]].concat();
    Done::of(slice.train("num_devices=2", "whole", &args).output().unwrap(), &["whole"]).ok();
    let cloud = ["cloud", "slurm", "fashion-mnist", "--slice=1*cpu", "--nodes=2", "--out=job", "--"];
    f.run(&[&cloud[..], &["--data-dir=../data"], &TINY[..], &args[..]].concat()).ok();
    std::fs::create_dir(f.path("bin")).unwrap();
    std::fs::create_dir(f.path("stub")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_systole"), f.path("bin/systole")).unwrap();
    let stubs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/cloud/stub");
    let path = [f.path("bin"), stubs.clone()];
    let usual = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(path.into_iter().chain(std::env::split_paths(&usual))).unwrap();
    let mut command = Command::new(stubs.join("sbatch"));
    command.arg("job.sh").current_dir(f.path("job")).env("PATH", path).env("STUB", f.path("stub"));
    // A port by the job's number, among the last of all.
    command.env("JOB", (free_port() % 4096).to_string()).env("SYSTOLE_PJRT_PLUGIN", &plugin);
    let job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();

    slice.wait_for_backup("job/systole-fashion-mnist");
    // What is to go gets the signal in all its processes.
    let tasks = std::fs::read_to_string(f.path("stub/tasks")).unwrap();
    let all = tasks.split_whitespace().flat_map(|task| {
        let children = format!("/proc/{task}/task/{task}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        [task.to_string()]
            .into_iter()
            .chain(children.split_whitespace().map(String::from))
            .collect::<Vec<_>>()
    });
    let all: Vec<String> = all.collect();
    assert_eq!(all.len(), 4, "{all:?}");
    all.iter().for_each(|process| signal("-TERM", process));
    let log = || {
        let name = f.files("job").into_iter().find(|name| name.ends_with(".log")).unwrap_or_default();
        std::fs::read_to_string(f.path("job").join(name)).unwrap_or_default()
    };
    let done = Done::of(job.wait_with_output().unwrap(), &["sbatch job.sh"]);
    assert_eq!(done.code, Some(0), "{}{}", done.err, log());
    let calls = std::fs::read_to_string(f.path("stub/calls")).unwrap();
    assert_eq!(
        (calls.matches("srun ").count(), calls.matches("scontrol requeue ").count()),
        (2, 1),
        "{calls}"
    );
    assert!(slice.model("job/systole-fashion-mnist") == slice.model("whole"));
    // The job's log has the lines of process 0, each launch's own those of its process.
    assert!(log().contains("[0] ") && !log().contains("[1] "), "{}", log());
    let own = std::fs::read_to_string(f.path("job/systole-fashion-mnist/launch-1.log")).unwrap();
    assert_eq!(own.matches("process 1 of 2; process 0 is at 127.0.0.1:").count(), 2, "{own}");
}

#[test]
fn a_launch_is_written_to_a_file_and_started_by_it() {
    let f = Folder::new("launch-config");
    f.run(&["launch", "config"]).fails("usage", &["--nproc N"]);
    let written = f.run(&["launch", "config", "--nproc=2", "--max-restarts=5", "--json"]).ok().json();
    assert_eq!((&written["file"], &written["launch"]["nproc"]), (&"launch.toml".into(), &2.into()));
    f.run(&["launch", "config", "--slurm"]).fails("io", &["launch.toml", "--force"]);
    let done = f.run(&["launch", "config", "--slurm", "--force", "--plugin=p.so"]).ok();
    assert!(done.out.contains("srun ") && done.out.contains("launch --config launch.toml"), "{}", done.out);
    let text = std::fs::read_to_string(f.path("launch.toml")).unwrap();
    assert!(text.contains("place = \"slurm\"") && text.contains("plugin = \"p.so\""), "{text}");

    let train = ["--", "train", "glyphs"];
    let launch = |more: &[&str]| f.run(&[&["launch", "--config=launch.toml"], more, &train[..]].concat());
    launch(&[]).fails("usage", &["--slurm"]);
    // An option comes before the file; its plugin stays.
    let done = launch(&["--nproc=1"]);
    assert!(done.code == Some(1) && done.err.contains("p.so"), "{}", done.err);
    f.write("launch.toml", "nproc = 1\nmax_restart = 1\n");
    launch(&[]).fails("usage", &["`max_restart`", "launch.toml, line 2", "`max_restarts`"]);
    f.run(&[&["launch"], &train[..]].concat()).fails("usage", &["--nproc N", "systole launch config"]);
    f.run(&["launch", "--nproc=2", "--slurm", "--", "train"]).fails("usage", &["--slurm"]);
    let xla = ["launch", "--nproc=2", "--", "train", "glyphs", "--device=xla"];
    f.run(&xla).fails("usage", &["--device"]);
}

/// The program that `cargo install` installs: alone in a folder, without the plugin's library.
#[test]
fn a_launch_needs_the_program_only() {
    let f = Folder::with_data("launch-alone");
    std::fs::create_dir_all(f.path("bin")).unwrap();
    std::fs::hard_link(env!("CARGO_BIN_EXE_systole"), f.path("bin/systole")).unwrap();
    let train = ["train", "fashion-mnist", "--data-dir=data", "--strategy=data_parallel"];
    let run = |first: &[&str], last: &[&str], options: &str, out: &str| {
        let mut command = Command::new(f.path("bin/systole"));
        command.current_dir(&f.0).args([first, &train, &["--out", out], &TINY, last].concat());
        for name in ["SYSTOLE_PJRT_PLUGIN", "SYSTOLE_LOG", "SYSTOLE_THREADS", "SYSTOLE_BACKEND"] {
            command.env_remove(name);
        }
        command.env("SYSTOLE_PJRT_OPTIONS", options).env("SYSTOLE_CACHE", f.path("cache"));
        Done::of(command.output().unwrap(), &[out]).ok().json()
    };
    let launched = run(&["launch", "--nproc=2", "--json", "--"], &[], "", "two");
    assert_eq!((&launched["processes"], &launched["devices"]), (&2.into(), &2.into()), "{launched}");
    // One process with both devices computes the same, by the plugin's own name.
    let alone = run(&[], &["--device=pjrt", "--json"], "num_devices=2", "one");
    assert_eq!(launched["result"]["history"], alone["history"]);
    let model = |out: &str| std::fs::read(f.path(out).join("fashion-mnist.safetensors")).unwrap();
    assert!(model("two") == model("one"));
    assert_eq!(alone["backend"], "pjrt");
}

/// The plugin's compiler says what a step needs, and each of its devices what it has.
#[test]
fn a_batch_is_chosen_by_what_the_devices_compiler_says() {
    let Some(plugin) = plugin("a_batch_is_chosen_by_what_the_devices_compiler_says") else { return };
    let f = Folder::with_data("auto-device");
    let device = format!("--device=pjrt:{}", plugin.display());
    let batch = |memory: &str, devices: &str| {
        let args =
            ["train", "cifar-cnn", "--batch-size=auto", "--print-config", "--max-memory", memory, &device];
        let mut command = f.command(&args);
        command.env("SYSTOLE_PJRT_OPTIONS", format!("num_devices={devices}"));
        let printed = Done::of(command.output().unwrap(), &args).ok();
        let line = printed.out.lines().find(|l| l.starts_with("batch_size = ")).unwrap().to_string();
        line.trim_start_matches("batch_size = ").parse::<u64>().unwrap()
    };
    let (small, large, two) = (batch("100MiB", "1"), batch("400MiB", "1"), batch("100MiB", "2"));
    assert!(small.is_power_of_two() && small < large && small <= two, "{small} {large} {two}");
    let args = ["train", "cifar-cnn", "--batch-size=auto", "--print-config", "--device=ref"];
    f.run(&args).fails("unsupported", &["`ref`", "--max-memory"]);
    let args = [&args[..], &["--max-memory=1GiB"]].concat();
    f.run(&args).fails("unsupported", &["fit.batch_size", "systole plan"]);
}

#[test]
fn hosts_that_were_started_otherwise_are_refused() {
    let Some(plugin) = plugin("hosts_that_were_started_otherwise_are_refused") else { return };
    let f = Folder::with_data("hosts-differ");
    let slice = Slice::new(&f, &plugin);
    let other = ["--set=fit.batch_size=32", "--set=seed=4"];
    for done in slice.start_each([("out", &[]), ("out", &other)]).wait() {
        done.fails("config", &["`seed = 3`", "`seed = 4`", "`fit.batch_size = 16`", "`fit.batch_size = 32`"]);
    }
    assert_eq!(f.files("out"), [""; 0], "nothing is left behind");
    // Devices of which some hosts would have none, and a strategy that would train two models.
    for (args, names) in [
        (&["--strategy=data_parallel", "--devices=2"][..], ["data_parallel", "data=2"]),
        (&["--strategy=one_device"], ["one_device", "data_parallel"]),
    ] {
        for done in slice.start("out", args).wait() {
            done.fails("config", &names);
        }
    }
    // A folder that only host 0 sees: the other has nothing to go on from.
    for done in slice.start("seen", &["--set=fit.epochs=1"]).wait() {
        done.ok();
    }
    let more = ["--set=fit.epochs=2", "--resume=force"];
    for done in slice.start_each([("seen", &more), ("elsewhere", &more)]).wait() {
        done.fails("config", &["`a new run`", "--out"]);
    }
}
