//! Electrical energy of a run, for chips with published power.
//!
//! Only chips are counted, not hosts, cooling or idle slices that wait to start.

use crate::advice::MachineChoice;
use crate::table::ChipTables;

/// Energy of a run on one machine of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energy {
    /// Power of all chips.
    pub watts: f64,
    /// Joules per step.
    pub step: f64,
    /// Samples (or program runs) per joule.
    pub samples_per_joule: f64,
    /// Joules of the run, if its length is known.
    pub run: Option<f64>,
}

impl Energy {
    /// Computes the energy of a run on a machine; `None` if the chip's power is not published.
    pub fn of(choice: &MachineChoice, tables: &ChipTables) -> Option<Energy> {
        let watts = choice.machine.watts(tables)?;
        let step = watts * choice.estimate.step().likely;
        Some(Energy {
            watts,
            step,
            samples_per_joule: choice.samples / step,
            run: choice.run.map(|seconds| watts * seconds[1]),
        })
    }
}

/// Formats an energy with three significant digits: `0.045 J`, `12.3 J`, `4.5 kJ`, `1.2 MJ`.
///
/// ```
/// use systole_plan::joules;
/// assert_eq!([joules(0.0123), joules(3.4567), joules(1234.0), joules(6.06e7)], ["0.0123 J", "3.46 J", "1.23 kJ", "60.6 MJ"]);
/// ```
pub fn joules(j: f64) -> String {
    let (value, unit) = match j {
        j if j < 1e3 => (j, "J"),
        j if j < 1e6 => (j / 1e3, "kJ"),
        j if j < 1e9 => (j / 1e6, "MJ"),
        j => (j / 1e9, "GJ"),
    };
    format!("{} {unit}", digits(value))
}

/// Formats a number with three significant digits: `0.00123`, `1.23`, `123`.
pub fn digits(x: f64) -> String {
    if x <= 0.0 || !x.is_finite() {
        return format!("{x}");
    }
    let before = x.log10().floor() as i64 + 1;
    format!("{x:.*}", (3 - before).clamp(0, 12) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_energies_do_not_vanish() {
        assert_eq!([joules(1e-6), joules(999.9), joules(0.5)], ["0.00000100 J", "1000 J", "0.500 J"]);
        assert_eq!([digits(0.0), digits(1234.5), digits(0.0304)], ["0", "1234", "0.0304"]);
    }
}
