//! JSON output of `systole plan`.

use super::text_table::{PlanTable, lines_of};
use serde_json::{Map, Value, json};
use systole_plan::{Bill, Energy, MachineChoice};

pub(super) fn json(plan: &PlanTable, with_layers: bool) -> Value {
    let choices = plan.choices.iter().zip(&plan.energy);
    let choices: Vec<Value> = choices.map(|(c, e)| choice(c, e.as_ref(), with_layers)).collect();
    let refused = plan.refused.iter().map(|(m, why)| json!({"machine": m, "why": why})).collect::<Value>();
    let epochs = plan.length.as_ref().and_then(|l| l.epochs.as_ref());
    json!({
        "what": plan.title, "steps": plan.length.as_ref().map(|l| l.steps),
        "epochs": epochs.map(|e| e.0), "samples": epochs.map(|e| e.1), "samples_from": epochs.map(|e| &e.2),
        "choices": choices, "refused": refused,
        "wish": {"budget": plan.wish.budget, "deadline_hours": plan.wish.deadline, "spot": plan.wish.spot},
        "advice": {"machine": plan.advice.choice.map(|i| plan.choices[i].machine.title()), "reasons": plan.advice.reasons},
    })
}

fn choice(c: &MachineChoice, energy: Option<&Energy>, with_layers: bool) -> Value {
    let range = |r: systole_plan::TimeRange| json!({"low": r.low, "likely": r.likely, "high": r.high});
    let (e, m) = (&c.estimate, &c.estimate.memory);
    let mut o = json!({
        "machine": c.machine.title(), "devices": c.machine.devices(), "estimator": e.by,
        "validated": e.by == "measured",
        "fits": m.fits(), "hbm_bytes": m.total(),
        "hbm_limit_bytes": m.limit.is_finite().then_some(m.limit),
        "hbm": {"parameters": m.parameters, "optimizer": m.optimizer, "inputs": m.inputs, "results": m.results,
                "activations": m.activations, "temporaries": m.temporaries, "code": m.code},
        "device_seconds": range(e.device), "collective_seconds": e.collective, "host_seconds": e.host.total(),
        "host": {"dispatch": e.host.dispatch, "feed": e.host.feed,
                 "pipeline": (e.host.pipeline > 0.0).then_some(e.host.pipeline)},
        "step_seconds": range(e.step()), "samples_per_second": c.rate(), "mfu": e.mfu(), "limit": e.limit(),
        "run_seconds": c.run.map(|r| json!({"low": r[0], "likely": r[1], "high": r[2]})),
        "dollars": c.dollars(false), "dollars_spot": c.bill.as_ref().and_then(|b| b.spot_run),
        "energy": energy.map(|e| json!({"watts": e.watts, "joules_per_step": e.step,
                                        "samples_per_joule": e.samples_per_joule, "run_joules": e.run})),
        "notes": c.notes,
    });
    if let Some(o) = o.as_object_mut() {
        more(o, c, with_layers);
    }
    o
}

/// Adds the fields that only some rows have.
fn more(o: &mut Map<String, Value>, c: &MachineChoice, with_layers: bool) {
    if let Some(b) = &c.bill {
        o.insert("price".into(), price(b));
    }
    if with_layers {
        let lines = lines_of(c);
        let each = lines.iter().map(|l| {
            json!({"layer": l.name, "seconds": l.seconds, "mxu": l.mxu, "bytes": l.bytes, "limit": l.limit,
                   "padding": l.padding})
        });
        o.insert("layers".into(), each.collect());
    }
}

fn price(b: &Bill) -> Value {
    json!({"dollars_per_hour": b.per_hour, "spot_dollars_per_hour": b.spot_per_hour,
        "host_dollars_per_hour": b.host_per_hour, "node_vm_dollars_per_hour": b.price.node_vm,
        "region": b.price.region, "date": b.price.date, "source": b.price.source, "older_than_a_year": b.old})
}
