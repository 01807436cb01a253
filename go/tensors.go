package millrace

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sort"
	"unsafe"
)

// Dequantize gives the rows*cols weights of a matrix whose blocks are of a type named by its id in GGUF files: the same
// bits on every machine. threads: 0: all processors.
func Dequantize(kind uint32, data []byte, rows, cols int64, threads int) ([]float32, error) {
	if rows < 1 || cols < 1 || rows > (1<<40)/cols {
		return nil, &Error{InvalidArgument, fmt.Sprintf("a matrix of %d x %d", rows, cols)}
	}
	out := make([]float32, rows*cols)
	err := call(func() int32 {
		return c.dequantize(kind, unsafe.Pointer(first(data)), uintptr(len(data)), rows, cols, &out[0], int32(threads))
	})
	return out, err
}

// Gemv gives y = W x by the engine's own product.
func Gemv(kind uint32, weight []byte, rows, cols int64, x []float32, threads int) ([]float32, error) {
	if rows < 1 || cols < 1 || int64(len(x)) != cols || rows > 1<<40 {
		return nil, &Error{InvalidArgument, fmt.Sprintf("a matrix of %d x %d by a vector of %d", rows, cols, len(x))}
	}
	y := make([]float32, rows)
	err := call(func() int32 {
		return c.gemv(kind, unsafe.Pointer(first(weight)), uintptr(len(weight)), rows, cols, &x[0], &y[0], int32(threads))
	})
	return y, err
}

// Tensor is one of a GGUF file: where its bytes lie.
type Tensor struct {
	Name  string
	Kind  uint32   // its type's id in GGUF files
	Shape []uint64 // innermost first
	Piece          // its bytes, and what pads them to the next tensor's
}

// Tensors reads a GGUF file's list of tensors, by place in the file. It trusts no length that the file gives.
func Tensors(path string) ([]Tensor, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, &Error{NotFound, err.Error()}
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, &Error{IOError, err.Error()}
	}
	r := &ggufReader{from: io.NewSectionReader(file, 0, info.Size()), size: info.Size()}
	tensors, alignment := r.tensors()
	if r.err != nil {
		return nil, &Error{Corrupt, fmt.Sprintf("%s: %v", path, r.err)}
	}
	size := uint64(info.Size())
	begin := (uint64(r.at) + alignment - 1) / alignment * alignment
	sort.SliceStable(tensors, func(i, j int) bool { return tensors[i].Offset < tensors[j].Offset })
	for i := range tensors {
		if tensors[i].Offset > size-min(begin, size) {
			return nil, &Error{Corrupt, fmt.Sprintf("%s: tensor %q lies behind the file's end", path, tensors[i].Name)}
		}
		tensors[i].Offset += begin
		if i > 0 {
			tensors[i-1].Bytes = tensors[i].Offset - tensors[i-1].Offset
		}
	}
	if n := len(tensors); n > 0 {
		tensors[n-1].Bytes = size - tensors[n-1].Offset
	}
	return tensors, nil
}

// ggufReader reads a header's fields; the first error stays.
type ggufReader struct {
	from     *io.SectionReader
	at, size int64
	err      error
}

func (r *ggufReader) bytes(count uint64) []byte {
	if r.err == nil && count > uint64(r.size-r.at) {
		r.err = fmt.Errorf("the header ends within a field at byte %d", r.at)
	}
	if r.err != nil {
		return make([]byte, 8)
	}
	out := make([]byte, count, max(count, 8))
	_, r.err = r.from.ReadAt(out, r.at)
	r.at += int64(count)
	return out
}
func (r *ggufReader) skip(count uint64) {
	if r.err == nil && count > uint64(r.size-r.at) {
		r.err = fmt.Errorf("the header ends within a value at byte %d", r.at)
	}
	if r.err == nil {
		r.at += int64(count)
	}
}
func (r *ggufReader) u32() uint32  { return binary.LittleEndian.Uint32(r.bytes(4)) }
func (r *ggufReader) u64() uint64  { return binary.LittleEndian.Uint64(r.bytes(8)) }
func (r *ggufReader) text() string { return string(r.bytes(r.u64())) }

// Bytes of a value by its type's id; 0: a text or a list.
var ggufBytes = []uint64{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

const ggufText, ggufList, ggufMostLists = 8, 9, 4

func (r *ggufReader) value(kind uint32, lists int) {
	switch {
	case r.err != nil:
	case kind >= uint32(len(ggufBytes)) || lists > ggufMostLists:
		r.err = fmt.Errorf("a value of unknown type %d at byte %d", kind, r.at)
	case kind == ggufText:
		r.skip(r.u64())
	case kind == ggufList:
		of, count := r.u32(), r.u64()
		if of < uint32(len(ggufBytes)) && ggufBytes[of] > 0 {
			if count > uint64(r.size)/ggufBytes[of] {
				r.err = fmt.Errorf("a list of %d values at byte %d", count, r.at)
			}
			r.skip(count * ggufBytes[of])
			return
		}
		for i := uint64(0); i < count && r.err == nil; i++ {
			r.value(of, lists+1)
		}
	default:
		r.skip(ggufBytes[kind])
	}
}

func (r *ggufReader) tensors() (out []Tensor, alignment uint64) {
	alignment = 32
	if string(r.bytes(4)) != "GGUF" {
		r.err = fmt.Errorf("it is no GGUF file")
	}
	if version := r.u32(); r.err == nil && (version < 2 || version > 3) {
		r.err = fmt.Errorf("version %d of the format is not 2 or 3", version)
	}
	count, keys := r.u64(), r.u64()
	for i := uint64(0); i < keys && r.err == nil; i++ {
		key, kind := r.text(), r.u32()
		if key == "general.alignment" && kind == 4 {
			if alignment = uint64(r.u32()); alignment == 0 || alignment > 1<<20 {
				r.err = fmt.Errorf("an alignment of %d", alignment)
			}
			continue
		}
		r.value(kind, 0)
	}
	for i := uint64(0); i < count && r.err == nil; i++ {
		t := Tensor{Name: r.text()}
		dims := r.u32()
		if dims > 8 {
			r.err = fmt.Errorf("tensor %q has %d dimensions", t.Name, dims)
		}
		for d := uint32(0); d < dims && r.err == nil; d++ {
			t.Shape = append(t.Shape, r.u64())
		}
		t.Kind, t.Offset = r.u32(), r.u64()
		out = append(out, t)
	}
	return out, alignment
}
