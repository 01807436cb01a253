"""Lists a GGUF file's tensors, and the range of those that are numbers by themselves:  tensors.py MODEL.gguf"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import millrace

if len(sys.argv) != 2:
    sys.exit(__doc__)
model = millrace.ModelFile(sys.argv[1])
for tensor in model:
    line = f"{tensor.name:<40} {tensor.dtype:<7} {'x'.join(map(str, tensor.shape)):<14} {tensor.nbytes:>12,}"
    if tensor.dtype == "F32":
        numbers = memoryview(model.view_tensor(tensor.name).view).cast("B").cast("f")
        line += f"  {min(numbers):.3g} to {max(numbers):.3g}"
    print(line)
