//! From estimates to a table of choices, and which of them to take.

use crate::estimate::Estimate;
use crate::machine::Machine;
use crate::price::Bill;

/// One line of the table.
#[derive(Clone, Debug)]
pub struct MachineChoice {
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

impl MachineChoice {
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
pub struct PlanLimits {
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
/// where it needs no more than an hour, because it costs nothing. What has no price is told, and never kept to a budget.
pub fn advise(choices: &[MachineChoice], wish: &PlanLimits) -> Advice {
    if choices.is_empty() {
        return none("there is nothing to choose from: no machine can run it as it is");
    }
    let fitting: Vec<usize> = (0..choices.len()).filter(|&i| choices[i].estimate.memory.fits()).collect();
    if fitting.is_empty() {
        return none("no machine of the table has the memory for it: a smaller --batch-size needs less");
    }
    if fitting.iter().all(|&i| choices[i].run.is_none()) {
        return none(
            "how long the run is, is not known: --steps N tells time and cost, of a model --samples N too",
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
    // Where nothing else is there, this computer is bearable however long it takes.
    let kept: Vec<usize> = fitting.iter().copied().filter(|&i| table.keeps(i)).collect();
    match table.least(|i| table.money(i), &kept) {
        Some(best) => table.cheapest(best, &kept, &[]),
        None => unmet(choices, &fitting, wish),
    }
}

/// Lines of the table under a wish.
struct ChoiceTable<'a> {
    choices: &'a [MachineChoice],
    wish: &'a PlanLimits,
}

impl ChoiceTable<'_> {
    fn time(&self, i: usize) -> f64 {
        self.choices[i].run.map_or(f64::INFINITY, |r| r[1])
    }

    /// Infinite where it is not known.
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

    /// The cheapest, and the fastest beside it.
    fn cheapest(&self, best: usize, kept: &[usize], unpriced: &[usize]) -> Advice {
        let mut reasons = vec![format!(
            "{}: {} for {}, the cheapest that fits{}",
            self.title(best),
            duration(self.time(best)),
            if self.is_here(best) { "nothing".into() } else { dollars(self.money(best)) },
            if self.wish.deadline.is_some() { " and is done in time" } else { "" },
        )];
        let faster = |i: &usize| *i != best && self.time(*i) < self.time(best);
        let priced: Vec<usize> = kept.iter().copied().filter(|&i| self.money(i).is_finite()).collect();
        if let Some(fastest) = self.least(|i| self.time(i), &priced).filter(faster) {
            reasons.push(format!(
                "{} would be done in {} for {}: the fastest{} of those whose price is known",
                self.title(fastest),
                duration(self.time(fastest)),
                dollars(self.money(fastest)),
                if self.limits() { " within your limits" } else { "" },
            ));
        }
        if let Some(fastest) = self.least(|i| self.time(i), unpriced).filter(faster) {
            let told = format!("{} in {}", self.title(fastest), duration(self.time(fastest)));
            reasons.push(format!("its price is not known: {told}; --tables FILE adds one"));
        }
        if matches!(self.choices[best].estimate.limit(), "host dispatch" | "host input" | "start") {
            let why = self.choices[best].estimate.limit();
            reasons.push(format!(
                "it is limited by {why}, not by the chip: a larger --batch-size would use it better than a larger slice"
            ));
        }
        Advice { choice: Some(best), reasons }
    }

    /// Where no line with a price is left.
    fn without_price(&self, fastest: usize, fitting: &[usize]) -> Advice {
        let told = format!("{} in {}", self.title(fastest), duration(self.time(fastest)));
        if self.wish.budget.is_some() {
            let mut advice = unmet(self.choices, fitting, self.wish);
            advice.reasons[0] = "no line whose price is known keeps to your limits".into();
            advice.reasons.push(format!(
                "the price of {told} is not known, so nobody can say that it keeps to the budget: --tables FILE adds one"
            ));
            return advice;
        }
        let reason = format!(
            "{told}: the fastest of those that are left; its price is not known, so that none is the cheapest (--tables FILE \
             adds one)"
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
        assert!(poor.reasons[1].contains("the soonest: tpu7x"), "{poor:?}");
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
        assert!(told.contains("price is not known") && !told.contains("limits"), "{told}");
        let poor = advise(&tpu7x, &PlanLimits { budget: Some(1e9), ..PlanLimits::default() });
        let told = poor.reasons.join(" ");
        assert!(poor.choice.is_none() && told.contains("nobody can say"), "{told}");
        // Beside a line with a price, the faster one without is told apart.
        tpu7x.push(all.remove(0));
        let both = advise(&tpu7x, &PlanLimits::default());
        let told = both.reasons.join(" ");
        assert_eq!(both.choice, Some(1));
        assert!(
            told.contains("its price is not known: tpu7x") && !told.contains("within your limits"),
            "{told}"
        );
    }

    #[test]
    fn without_choices_or_a_length_no_memory_is_blamed() {
        let told = |choices: &[MachineChoice]| advise(choices, &PlanLimits::default()).reasons.join(" ");
        assert!(
            !told(&[]).contains("memory") && told(&[]).contains("no machine can run it"),
            "{}",
            told(&[])
        );
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
