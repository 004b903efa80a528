# Plot the losses: the last line of the training output is a JSON object.
import matplotlib.pyplot as plt

result = json.loads(open('result.json').read().strip().splitlines()[-1])
assert 'history' in result, result
history = result['history']
epochs = [epoch['epoch'] for epoch in history]
for name in sorted({name for epoch in history for name in epoch if name.endswith('loss')}):
    plt.plot(epochs, [epoch.get(name) for epoch in history], marker='.', label=name)
plt.xlabel('epoch')
plt.legend()
plt.show()
print({name: value for name, value in history[-1].items() if isinstance(value, (int, float))})
