"""Lists a GGUF file's tensors, and the range of those that are numbers by themselves. Of a tensor that is named, its first
weights and its product with a vector of ones, the sums of its rows:  tensors.py MODEL.gguf [NAME]"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import millrace

if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
model = millrace.ModelFile(sys.argv[1])
if len(sys.argv) == 3:
    tensor, view = model[sys.argv[2]], model.view_tensor(sys.argv[2])
    weights = millrace.dequantize(view).view.cast("B").cast("f")
    print(f"{tensor.dtype} {tensor.shape}:", *(f"{w:.4g}" for w in weights[:8]), "...")
    if len(tensor.shape) == 2:
        print("sums of rows:", *(f"{y:.4g}" for y in millrace.gemv(view, [1.0] * tensor.shape[1]).view[:8]), "...")
    sys.exit()
for tensor in model:
    line = f"{tensor.name:<40} {tensor.dtype:<7} {'x'.join(map(str, tensor.shape)):<14} {tensor.nbytes:>12,}"
    if tensor.dtype == "F32":
        numbers = memoryview(model.view_tensor(tensor.name).view).cast("B").cast("f")
        line += f"  {min(numbers):.3g} to {max(numbers):.3g}"
    print(line)
