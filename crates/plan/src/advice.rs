//! Compares the machines of a plan and recommends one within budget and deadline.

use crate::estimate::Estimate;
use crate::machine::Machine;
use crate::price::Bill;

/// One row of the plan: a machine with its estimate and cost.
#[derive(Clone, Debug)]
pub struct MachineChoice {
    /// The machine.
    pub machine: Machine,
    /// Estimate of a step on the machine.
    pub estimate: Estimate,
    /// Samples per step over all devices.
    pub samples: f64,
    /// Seconds of the run, if its length is known: minimum, likely, maximum.
    pub run: Option<[f64; 3]>,
    /// Cost of the run, if a price is known.
    pub bill: Option<Bill>,
    /// Notes about this row.
    pub notes: Vec<String>,
}

impl MachineChoice {
    /// Cost of the planned run in dollars; this computer is free.
    pub fn dollars(&self, spot: bool) -> Option<f64> {
        if self.machine.billed().is_none() {
            return Some(0.0);
        }
        let bill = self.bill.as_ref()?;
        if spot { bill.spot_run.or(bill.run) } else { bill.run }
    }

    /// Samples per second on this machine.
    pub fn rate(&self) -> f64 {
        self.samples / self.estimate.step().likely
    }
}

/// Budget, deadline and spot preference of the user.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanLimits {
    /// Maximum dollars.
    pub budget: Option<f64>,
    /// Maximum hours.
    pub deadline: Option<f64>,
    /// Whether spot (preemptible) capacity is acceptable.
    pub spot: bool,
}

/// Recommended machine of a plan, with reasons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// Index of the row.
    pub choice: Option<usize>,
    /// Reasons and alternatives, as sentences.
    pub reasons: Vec<String>,
}

/// Recommends the cheapest machine that fits into memory, budget and deadline; the faster one if prices are equal.
///
/// Without a deadline this computer is recommended if it needs at most an hour, because it is free. Rows without a
/// price are mentioned, but never count as within a budget.
pub fn advise(choices: &[MachineChoice], wish: &PlanLimits) -> Advice {
    if choices.is_empty() {
        return none("no machine can run the program unchanged");
    }
    let fitting: Vec<usize> = (0..choices.len()).filter(|&i| choices[i].estimate.memory.fits()).collect();
    if fitting.is_empty() {
        return none("no machine in the table has enough memory: use a smaller --batch-size");
    }
    if fitting.iter().all(|&i| choices[i].run.is_none()) {
        return none(
            "the length of the run is unknown: pass --steps N, or --samples N for a model, to get time and cost",
        );
    }
    let table = ChoiceTable { choices, wish };
    let kept: Vec<usize> =
        fitting.iter().copied().filter(|&i| table.keeps(i) && table.is_bearable(i)).collect();
    let unpriced: Vec<usize> =
        fitting.iter().copied().filter(|&i| table.in_time(i) && table.money(i).is_infinite()).collect();
    if let Some(best) = table.least(|i| table.money(i), &kept).filter(|&i| table.money(i).is_finite()) {
        return table.cheapest(best, &kept, &unpriced);
    }
    if let Some(fastest) = table.least(|i| table.time(i), &unpriced) {
        return table.without_price(fastest, &fitting);
    }
    // As the last option, this computer is acceptable regardless of the time.
    let kept: Vec<usize> = fitting.iter().copied().filter(|&i| table.keeps(i)).collect();
    match table.least(|i| table.money(i), &kept) {
        Some(best) => table.cheapest(best, &kept, &[]),
        None => unmet(choices, &fitting, wish),
    }
}

/// Rows of the plan, with the user's limits.
struct ChoiceTable<'a> {
    choices: &'a [MachineChoice],
    wish: &'a PlanLimits,
}

impl ChoiceTable<'_> {
    fn time(&self, i: usize) -> f64 {
        self.choices[i].run.map_or(f64::INFINITY, |r| r[1])
    }

    /// Infinite if the price is unknown.
    fn money(&self, i: usize) -> f64 {
        self.choices[i].dollars(self.wish.spot).unwrap_or(f64::INFINITY)
    }

    fn is_here(&self, i: usize) -> bool {
        self.choices[i].machine.billed().is_none()
    }

    fn in_time(&self, i: usize) -> bool {
        self.time(i) <= self.wish.deadline.map_or(f64::INFINITY, |h| h * 3600.0)
    }

    fn keeps(&self, i: usize) -> bool {
        self.in_time(i) && self.wish.budget.is_none_or(|b| self.money(i) <= b)
    }

    fn is_bearable(&self, i: usize) -> bool {
        !self.is_here(i) || self.wish.deadline.is_some() || self.time(i) <= 3600.0
    }

    fn least(&self, by: impl Fn(usize) -> f64, of: &[usize]) -> Option<usize> {
        let of = of.iter().copied();
        of.min_by(|&a, &b| by(a).total_cmp(&by(b)).then(self.time(a).total_cmp(&self.time(b))))
    }

    fn title(&self, i: usize) -> String {
        self.choices[i].machine.title()
    }

    fn limits(&self) -> bool {
        self.wish.budget.is_some() || self.wish.deadline.is_some()
    }

    /// Advice for the cheapest row, with the fastest as an alternative.
    fn cheapest(&self, best: usize, kept: &[usize], unpriced: &[usize]) -> Advice {
        let mut reasons = vec![format!(
            "{}: {} for {}, the cheapest option that fits{}",
            self.title(best),
            duration(self.time(best)),
            if self.is_here(best) { "nothing".into() } else { dollars(self.money(best)) },
            if self.wish.deadline.is_some() { " and meets the deadline" } else { "" },
        )];
        let faster = |i: &usize| *i != best && self.time(*i) < self.time(best);
        let priced: Vec<usize> = kept.iter().copied().filter(|&i| self.money(i).is_finite()).collect();
        if let Some(fastest) = self.least(|i| self.time(i), &priced).filter(faster) {
            reasons.push(format!(
                "{} takes {} for {}: the fastest{} with a known price",
                self.title(fastest),
                duration(self.time(fastest)),
                dollars(self.money(fastest)),
                if self.limits() { " within your limits" } else { "" },
            ));
        }
        if let Some(fastest) = self.least(|i| self.time(i), unpriced).filter(faster) {
            let told = format!("{} in {}", self.title(fastest), duration(self.time(fastest)));
            reasons.push(format!("without a known price: {told}; add the price with --tables FILE"));
        }
        if matches!(self.choices[best].estimate.limit(), "host dispatch" | "host input" | "start") {
            let why = self.choices[best].estimate.limit();
            let starves = why == "host input" && self.choices[best].estimate.host.pipeline > 0.0;
            let remedy = match starves {
                true => "a faster input pipeline or more hosts help, a larger batch or slice does not",
                false => "a larger --batch-size improves utilization more than a larger slice",
            };
            reasons.push(format!("the limit is {why}, not the chip: {remedy}"));
        }
        Advice { choice: Some(best), reasons }
    }

    /// Advice if no row with a price is left.
    fn without_price(&self, fastest: usize, fitting: &[usize]) -> Advice {
        let told = format!("{} in {}", self.title(fastest), duration(self.time(fastest)));
        if self.wish.budget.is_some() {
            let mut advice = unmet(self.choices, fitting, self.wish);
            advice.reasons[0] = "no option with a known price is within your limits".into();
            advice.reasons.push(format!(
                "the price of {told} is unknown, so it may exceed the budget: add the price with --tables FILE"
            ));
            return advice;
        }
        let reason = format!(
            "{told}: the fastest of the remaining options; its price is unknown, so it cannot be compared by cost (add the price with \
             --tables FILE)"
        );
        Advice { choice: Some(fastest), reasons: vec![reason] }
    }
}

fn none(why: &str) -> Advice {
    Advice { choice: None, reasons: vec![why.into()] }
}

fn unmet(choices: &[MachineChoice], fitting: &[usize], wish: &PlanLimits) -> Advice {
    let soonest = fitting.iter().copied().filter_map(|i| Some((i, choices[i].run?[1])));
    let least = fitting.iter().copied().filter_map(|i| Some((i, choices[i].dollars(wish.spot)?)));
    let mut reasons = vec!["no option fits within your limits".to_string()];
    if let Some((i, s)) = soonest.min_by(|a, b| a.1.total_cmp(&b.1)) {
        reasons.push(format!("fastest: {} in {}", choices[i].machine.title(), duration(s)));
    }
    if let Some((i, d)) = least.min_by(|a, b| a.1.total_cmp(&b.1)) {
        reasons.push(format!("cheapest: {} for {}", choices[i].machine.title(), dollars(d)));
    }
    Advice { choice: None, reasons }
}

/// Formats a duration: `3 min 20 s`, `4.1 h`.
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

/// Formats a cost in dollars: `$0.20`, `< $0.01`.
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
    use crate::{ChipTables, CpuCeilings, HalfType, KernelList, analytic, bill};
    use systole_ir::{DType, GraphBuilder, TensorType};

    fn choices(steps: f64) -> Vec<MachineChoice> {
        let t = ChipTables::built_in().unwrap();
        let g = GraphBuilder::new("main");
        let ty = TensorType::new(DType::BF16, [8192, 8192]);
        let (a, b) = (g.parameter(ty.clone(), "a"), g.parameter(ty, "b"));
        let work = KernelList::of(&g.finish(&[a.dot(&b)]).unwrap());
        let cpu = Machine::Cpu(CpuCeilings {
            flops: 4e11,
            bf16_flops: 4e11,
            tiers: vec![(f64::INFINITY, 2e10)],
            threads: 2,
            memory: 2e10,
        });
        let named = ["v5e-1", "v6e-1", "tpu7x-2x2x1"].map(|n| Machine::of(n, &t).unwrap());
        let choice = |machine: Machine| {
            let estimate = analytic(&work, &machine, &t, HalfType::Bf16).unwrap();
            let run = estimate.step().likely * steps;
            let bill = machine.billed().and_then(|(c, n)| bill(&t, c, n, None, Some(run), "2026-11-22"));
            MachineChoice { machine, estimate, samples: 1.0, run: Some([run; 3]), bill, notes: vec![] }
        };
        named.into_iter().chain([cpu]).map(choice).collect()
    }

    #[test]
    fn the_cheapest_that_keeps_to_the_limits_is_advised() {
        let long = choices(1e6);
        let plain = advise(&long, &PlanLimits::default());
        // A v6e chip costs 2.25 times a v5e chip and is 4 times as fast at large products; this CPU would take days.
        assert_eq!(long[plain.choice.unwrap()].machine.title(), "v6e-1", "{plain:?}");
        let poor = advise(&long, &PlanLimits { budget: Some(0.001), ..PlanLimits::default() });
        assert_eq!(poor.choice, None);
        assert!(poor.reasons[1].contains("fastest: tpu7x"), "{poor:?}");
        let hasty = advise(&long, &PlanLimits { deadline: Some(1e-4), ..PlanLimits::default() });
        assert_eq!(hasty.choice, None);
        let patient = advise(&long, &PlanLimits { deadline: Some(1e6), ..PlanLimits::default() });
        assert_eq!(long[patient.choice.unwrap()].machine.title(), "this CPU");
        let short = choices(10.0);
        let plain = advise(&short, &PlanLimits::default());
        assert_eq!(short[plain.choice.unwrap()].machine.title(), "this CPU", "free and quick enough");
    }

    #[test]
    fn what_has_no_price_keeps_to_no_budget() {
        let mut all = choices(1e6);
        let mut tpu7x = vec![all.remove(2)];
        assert!(tpu7x[0].bill.is_none() && tpu7x[0].machine.title().starts_with("tpu7x"));
        let free = advise(&tpu7x, &PlanLimits::default());
        assert_eq!(free.choice, Some(0));
        let told = free.reasons.join(" ");
        assert!(told.contains("price is unknown") && !told.contains("limits"), "{told}");
        let poor = advise(&tpu7x, &PlanLimits { budget: Some(1e9), ..PlanLimits::default() });
        let told = poor.reasons.join(" ");
        assert!(poor.choice.is_none() && told.contains("may exceed the budget"), "{told}");
        // Beside a line with a price, the faster one without is told apart.
        tpu7x.push(all.remove(0));
        let both = advise(&tpu7x, &PlanLimits::default());
        let told = both.reasons.join(" ");
        assert_eq!(both.choice, Some(1));
        assert!(
            told.contains("without a known price: tpu7x") && !told.contains("within your limits"),
            "{told}"
        );
    }

    #[test]
    fn without_choices_or_a_length_no_memory_is_blamed() {
        let told = |choices: &[MachineChoice]| advise(choices, &PlanLimits::default()).reasons.join(" ");
        assert!(!told(&[]).contains("memory") && told(&[]).contains("no machine can run"), "{}", told(&[]));
        let mut endless = choices(1.0);
        endless.iter_mut().for_each(|c| (c.run, c.bill) = (None, None));
        assert!(told(&endless).contains("--steps N"), "{}", told(&endless));
        // Days on this computer are the only offer, and no limit was given.
        let here = choices(1e6).pop().unwrap();
        let alone = advise(&[here], &PlanLimits::default());
        assert!(alone.choice == Some(0) && !alone.reasons[0].contains("limits"), "{alone:?}");
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
