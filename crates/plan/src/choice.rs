//! From estimates to a table of choices, and which of them to take.

use crate::estimate::Estimate;
use crate::machine::Machine;
use crate::price::Bill;

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Where.
    pub machine: Machine,
    /// A step there.
    pub estimate: Estimate,
    /// Samples of each step, all devices together.
    pub samples: f64,
    /// Seconds of the run, where its length is known: least, likely, most.
    pub run: Option<[f64; 3]>,
    /// What it costs, where a price is known.
    pub bill: Option<Bill>,
    /// What a reader must know about this line.
    pub notes: Vec<String>,
}

impl Choice {
    /// Dollars of the run; this computer costs nothing that is billed.
    pub fn dollars(&self, spot: bool) -> Option<f64> {
        if self.machine.billed().is_none() {
            return Some(0.0);
        }
        let bill = self.bill.as_ref()?;
        if spot { bill.spot_run.or(bill.run) } else { bill.run }
    }

    /// Samples a second.
    pub fn rate(&self) -> f64 {
        self.samples / self.estimate.step().likely
    }
}

/// What a user can spend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wish {
    /// Dollars at most.
    pub budget: Option<f64>,
    /// Hours at most.
    pub deadline: Option<f64>,
    /// Whether capacity that may be taken back is fine.
    pub spot: bool,
}

/// The line to take and why, and what else is worth knowing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// Index of the line.
    pub choice: Option<usize>,
    /// Sentences.
    pub reasons: Vec<String>,
}

/// The cheapest line that fits and keeps to the wish; among equals the faster one. Without a deadline this computer wins
/// where it needs no more than an hour, because it costs nothing.
pub fn advise(choices: &[Choice], wish: &Wish) -> Advice {
    let fitting: Vec<usize> = (0..choices.len()).filter(|&i| choices[i].estimate.memory.fits()).collect();
    if fitting.is_empty() {
        return none("no machine of the table has the memory for it: a smaller --batch-size needs less");
    }
    let time = |i: usize| choices[i].run.map_or(f64::INFINITY, |r| r[1]);
    let money = |i: usize| choices[i].dollars(wish.spot).unwrap_or(f64::INFINITY);
    let patience = wish.deadline.map_or(f64::INFINITY, |h| h * 3600.0);
    let here = |i: usize| choices[i].machine.billed().is_none();
    let bearable = |i: usize| !here(i) || wish.deadline.is_some() || time(i) <= 3600.0;
    let kept: Vec<usize> = fitting
        .iter()
        .copied()
        .filter(|&i| time(i) <= patience && wish.budget.is_none_or(|b| money(i) <= b) && bearable(i))
        .collect();
    let by = |f: &dyn Fn(usize) -> f64, of: &[usize]| {
        of.iter().copied().min_by(|&a, &b| f(a).total_cmp(&f(b)).then(time(a).total_cmp(&time(b))))
    };
    let Some(best) = by(&money, &kept).filter(|&i| money(i).is_finite()) else {
        return unmet(choices, &fitting, wish);
    };
    let mut reasons = vec![format!(
        "{}: {} for {}, the cheapest that fits{}",
        choices[best].machine.title(),
        duration(time(best)),
        if here(best) { "nothing".into() } else { dollars(money(best)) },
        if wish.deadline.is_some() { " and is done in time" } else { "" },
    )];
    if let Some(fastest) = by(&time, &kept).filter(|&i| i != best && time(i) < time(best)) {
        let cost =
            if money(fastest).is_finite() { dollars(money(fastest)) } else { "an unknown price".into() };
        reasons.push(format!(
            "{} would be done in {} for {cost}: the fastest within your limits",
            choices[fastest].machine.title(),
            duration(time(fastest)),
        ));
    }
    if matches!(choices[best].estimate.limit(), "host dispatch" | "host input" | "start") {
        let why = choices[best].estimate.limit();
        reasons.push(format!(
            "it is limited by {why}, not by the chip: a larger --batch-size would use it better than a larger slice"
        ));
    }
    Advice { choice: Some(best), reasons }
}

fn none(why: &str) -> Advice {
    Advice { choice: None, reasons: vec![why.into()] }
}

fn unmet(choices: &[Choice], fitting: &[usize], wish: &Wish) -> Advice {
    let soonest = fitting.iter().copied().filter_map(|i| Some((i, choices[i].run?[1])));
    let least = fitting.iter().copied().filter_map(|i| Some((i, choices[i].dollars(wish.spot)?)));
    let mut reasons = vec!["nothing in the table fits and keeps to your limits".to_string()];
    if let Some((i, s)) = soonest.min_by(|a, b| a.1.total_cmp(&b.1)) {
        reasons.push(format!("the soonest: {} in {}", choices[i].machine.title(), duration(s)));
    }
    if let Some((i, d)) = least.min_by(|a, b| a.1.total_cmp(&b.1)) {
        reasons.push(format!("the cheapest: {} for {}", choices[i].machine.title(), dollars(d)));
    }
    Advice { choice: None, reasons }
}

/// `3 min 20 s`, `4.1 h`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => "an unknown time".into(),
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.1 => format!("{:.2} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 90.0 => format!("{s:.1} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 3.0 * 86400.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

/// `$0.20`, `< $0.01`.
pub fn dollars(d: f64) -> String {
    match d {
        d if d <= 0.0 => "free".into(),
        d if d < 0.01 => "< $0.01".into(),
        d if d < 100.0 => format!("${d:.2}"),
        d => format!("${d:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Half, Tables, Work, analytic, bill};
    use systole_ir::{DType, GraphBuilder, TensorType};

    fn choices(steps: f64) -> Vec<Choice> {
        let t = Tables::built_in().unwrap();
        let g = GraphBuilder::new("main");
        let ty = TensorType::new(DType::BF16, [8192, 8192]);
        let (a, b) = (g.parameter(ty.clone(), "a"), g.parameter(ty, "b"));
        let work = Work::of(&g.finish(&[a.dot(&b)]).unwrap());
        let cpu = Machine::Cpu(Cpu {
            flops: 4e11,
            bf16_flops: 4e11,
            tiers: vec![(f64::INFINITY, 2e10)],
            threads: 2,
            memory: 2e10,
        });
        let named = ["v5e-1", "v6e-1", "tpu7x-2x2x1"].map(|n| Machine::of(n, &t).unwrap());
        let choice = |machine: Machine| {
            let estimate = analytic(&work, &machine, &t, Half::Bf16).unwrap();
            let run = estimate.step().likely * steps;
            let bill = machine.billed().and_then(|(c, n)| bill(&t, c, n, None, Some(run), "2026-11-22"));
            Choice { machine, estimate, samples: 1.0, run: Some([run; 3]), bill, notes: vec![] }
        };
        named.into_iter().chain([cpu]).map(choice).collect()
    }

    #[test]
    fn the_cheapest_that_keeps_to_the_limits_is_advised() {
        let long = choices(1e6);
        let plain = advise(&long, &Wish::default());
        // A v6e chip costs 2.25 times a v5e chip and is 4 times as fast at large products; this CPU would take days.
        assert_eq!(long[plain.choice.unwrap()].machine.title(), "v6e-1", "{plain:?}");
        let poor = advise(&long, &Wish { budget: Some(0.001), ..Wish::default() });
        assert_eq!(poor.choice, None);
        assert!(poor.reasons[1].contains("the soonest: tpu7x"), "{poor:?}");
        let hasty = advise(&long, &Wish { deadline: Some(1e-4), ..Wish::default() });
        assert_eq!(hasty.choice, None);
        let patient = advise(&long, &Wish { deadline: Some(1e6), ..Wish::default() });
        assert_eq!(long[patient.choice.unwrap()].machine.title(), "this CPU");
        let short = choices(10.0);
        let plain = advise(&short, &Wish::default());
        assert_eq!(short[plain.choice.unwrap()].machine.title(), "this CPU", "free and quick enough");
    }

    #[test]
    fn times_and_sums_read_well() {
        assert_eq!([duration(2e-6), duration(0.0042), duration(200.0)], ["2 µs", "4.20 ms", "3 min"]);
        assert_eq!(
            [dollars(0.0), dollars(0.004), dollars(3.456), dollars(1234.0)],
            ["free", "< $0.01", "$3.46", "$1234"]
        );
    }
}
