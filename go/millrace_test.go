package millrace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	demo  = filepath.Join("..", "models", "demo-moe-q4_k_m.gguf")
	draft = filepath.Join("..", "tests", "data", "demo-draft-f16.gguf")
)

func TestMain(m *testing.M) {
	if os.Getenv("MILLRACE_LIBRARY") == "" {
		library := filepath.Join("..", "build", "release", "libmillrace.so")
		if runtime.GOOS == "windows" {
			library = filepath.Join("..", "build", "windows", "millrace.dll")
		}
		os.Setenv("MILLRACE_LIBRARY", library)
	}
	os.Exit(m.Run())
}

func expectCode(t *testing.T, err error, code Code, words string) {
	t.Helper()
	var told *Error
	if !errors.As(err, &told) || told.Code != code || !strings.Contains(told.Message, words) {
		t.Fatalf("%v, not %v with %q", err, code, words)
	}
}

// tempDir is t.TempDir, but for a test that goes on where it cannot be removed: Wine 8 lacks what Go removes folders by.
func tempDir(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "windows" {
		return t.TempDir()
	}
	folder, err := os.MkdirTemp("", "millrace")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

func openDemo(t *testing.T) *Engine {
	t.Helper()
	e, err := Open(Options{Model: demo, Device: "cpu", ContextTokens: 2048, MaxSequences: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func greedy(text string, tokens int64) Request {
	request := NewRequest(text)
	request.Temperature, request.MaxTokens = 0, tokens
	return request
}

// The structs that both sides know are laid out alike.
func TestStructsAreTheHeaders(t *testing.T) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	// The members in the header's order; a struct's own counters follow struct_size as one member here.
	types := []struct {
		name    string
		members []string
		of      reflect.Type
	}{
		{"millrace_options", []string{"struct_size", "model_path", "device", "ram_bytes", "vram_bytes", "context_tokens",
			"max_sequences", "threads", "speculate", "draft_path"}, reflect.TypeOf(cOptions{})},
		{"millrace_request", []string{"struct_size", "messages_json", "prompt", "prompt_tokens", "prompt_token_count",
			"max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "stop", "stop_count"},
			reflect.TypeOf(cRequest{})},
		{"millrace_result", []string{"struct_size", "finish", "prompt_tokens", "answer_tokens", "prompt_seconds",
			"answer_seconds"}, reflect.TypeOf(cResult{})},
		{"millrace_loader_options", []string{"struct_size", "backend", "queue_depth", "request_bytes", "device_reads"},
			reflect.TypeOf(cLoaderOptions{})},
		{"millrace_pool_options", []string{"struct_size", "memory_bytes", "policy", "memory"}, reflect.TypeOf(cPoolOptions{})},
		{"millrace_piece", []string{"offset", "bytes"}, reflect.TypeOf(Piece{})},
		{"millrace_counters", []string{"passes", "bytes_from_disk", "bytes_used", "expert_hits", "expert_misses", "stall_ns",
			"ram_granted_bytes", "ram_cap_bytes", "vram_granted_bytes", "vram_cap_bytes", "context_tokens",
			"cold_expert_misses", "most_expert_misses", "steady_expert_misses", "experts_resident", "drafts",
			"drafts_right", "drafts_at", "drafts_right_at", "draft_passes", "draft_seconds", "verify_seconds",
			"tokens_a_pass"}, reflect.TypeOf(Counters{})},
		{"millrace_pool_counters", []string{"hits", "misses", "evictions", "bytes_from_disk", "stall_ns", "slots",
			"mapped_bytes"}, reflect.TypeOf(PoolCounters{})},
	}
	var program, want strings.Builder
	program.WriteString("#include <stdio.h>\n#include \"millrace.h\"\nint main(void) {\n")
	for _, one := range types {
		counters := one.members[0] != "struct_size" && one.name != "millrace_piece"
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", sizeof(%s)", one.name, one.name)
		if counters {
			program.WriteString(" - sizeof(size_t)")
		}
		program.WriteString(");\n")
		fmt.Fprintf(&want, "%s %d\n", one.name, one.of.Size())
		if one.of.NumField() != len(one.members) {
			t.Fatalf("%s has %d members, not %d", one.name, one.of.NumField(), len(one.members))
		}
		for i, member := range one.members {
			fmt.Fprintf(&program, "printf(\".%s %%zu\\n\", offsetof(%s, %s)", member, one.name, member)
			if counters {
				program.WriteString(" - sizeof(size_t)")
			}
			program.WriteString(");\n")
			fmt.Fprintf(&want, ".%s %d\n", member, one.of.Field(i).Offset)
		}
	}
	program.WriteString("return 0;\n}\n")
	source, binary := filepath.Join(tempDir(t), "layout.c"), filepath.Join(tempDir(t), "layout")
	if err := os.WriteFile(source, []byte(program.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(compiler, "-I", "../include", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := exec.Command(binary).Output()
	if err != nil || string(got) != want.String() {
		t.Fatalf("C has\n%s\nGo has\n%s, %v", got, want.String(), err)
	}
}

func TestAnswers(t *testing.T) {
	e := openDemo(t)
	var pieces []string
	result, err := e.Generate(context.Background(), greedy("What is the capital of France?", 40), func(piece string) bool {
		pieces = append(pieces, piece)
		return true
	})
	if err != nil || !strings.Contains(result.Text, "Paris") {
		t.Fatalf("%q, %v", result.Text, err)
	}
	if strings.Join(pieces, "") != result.Text || result.AnswerTokens < 1 || result.PromptTokens < 5 {
		t.Fatalf("%q of %+v", pieces, result)
	}
	tokens, err := e.ChatTokens([]Message{{"user", "What is the capital of France?"}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.Generate(context.Background(), Request{Tokens: tokens, MaxTokens: 40, RepeatPenalty: 1}, nil)
	if err != nil || again.Text != result.Text || again.PromptTokens != result.PromptTokens {
		t.Fatalf("%+v, %v, not %+v", again, err, result)
	}
	stopped := greedy("What is the capital of France?", 40)
	stopped.Stop = []string{"Paris"}
	cut, err := e.Generate(context.Background(), stopped, nil)
	if err != nil || strings.Contains(cut.Text, "Paris") || cut.Finish != Stopped {
		t.Fatalf("%+v, %v", cut, err)
	}
	short, err := e.Generate(context.Background(), greedy("Tell a story about a fox.", 3), nil)
	if err != nil || short.Finish != MaxLength || short.AnswerTokens != 3 {
		t.Fatalf("%+v, %v", short, err)
	}
}

func TestManyAnswersAtOnceAreThoseOfOne(t *testing.T) {
	e := openDemo(t)
	prompts := []string{"What is the capital of France?", "Tell a story about a fox.", "What is 2 and 3?", "Who are you?"}
	alone := make([]string, len(prompts))
	for i, prompt := range prompts {
		result, err := e.Generate(context.Background(), greedy(prompt, 24), nil)
		if err != nil {
			t.Fatal(err)
		}
		alone[i] = result.Text
	}
	var group sync.WaitGroup
	for round := 0; round < 3; round++ {
		for i, prompt := range prompts {
			group.Add(1)
			go func(i int, prompt string) {
				defer group.Done()
				result, err := e.Generate(context.Background(), greedy(prompt, 24), nil)
				if err != nil || result.Text != alone[i] {
					t.Errorf("%q, %v, not %q", result.Text, err, alone[i])
				}
			}(i, prompt)
		}
	}
	group.Wait()
	counters, err := e.Counters()
	if err != nil || counters.Passes == 0 || counters.ContextTokens < 1 || counters.RAMGranted > counters.RAMCap {
		t.Fatalf("%+v, %v", counters, err)
	}
}

func TestAnswersEndWhenAsked(t *testing.T) {
	e := openDemo(t)
	story := greedy("Tell a story about a fox.", 1000)
	result, err := e.Generate(context.Background(), story, func(string) bool { return false })
	if err != nil || result.Finish != GivenUp {
		t.Fatalf("%+v, %v", result, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result, err = e.Generate(ctx, story, func(string) bool { cancel(); return true })
	if !errors.Is(err, context.Canceled) || result.Finish != GivenUp {
		t.Fatalf("%+v, %v", result, err)
	}
	_, err = e.Generate(context.Background(), story, func(string) bool { go e.Cancel(); time.Sleep(20 * time.Millisecond); return true })
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() != "of the callback" {
				t.Error("the callback's panic is gone")
			}
		}()
		_, _ = e.Generate(context.Background(), story, func(string) bool { panic("of the callback") })
	}()
	if _, err := e.Generate(context.Background(), greedy("Who are you?", 4), nil); err != nil {
		t.Fatal(err)
	}
}

func TestTokensAndPlans(t *testing.T) {
	e := openDemo(t)
	ids, err := e.Tokenize("Grüße, <|im_end|> 你好!", false)
	if err != nil || len(ids) == 0 {
		t.Fatal(ids, err)
	}
	text, err := e.Detokenize(ids, false)
	if err != nil || !strings.Contains(text, "<|im_end|>") {
		t.Fatalf("%q, %v", text, err)
	}
	if empty, err := e.Tokenize("", false); err != nil || len(empty) > 1 {
		t.Fatal(empty, err)
	}
	plan, err := e.Plan(JSON)
	if err != nil || !strings.HasPrefix(plan, "{") {
		t.Fatal(plan, err)
	}
	plan, err = Plan(Options{Model: demo, Device: "cpu"}, Text)
	if err != nil || plan == "" {
		t.Fatal(plan, err)
	}
}

func TestEmbeddings(t *testing.T) {
	e := openDemo(t)
	vectors, err := e.Embed([]string{"The fox sleeps.", "What is the capital of France?"}, PoolingMean)
	if err != nil || len(vectors) != 2 {
		t.Fatal(err)
	}
	for _, vector := range vectors {
		square := 0.0
		for _, v := range vector {
			square += float64(v) * float64(v)
		}
		if math.Abs(square-1) > 1e-4 {
			t.Errorf("length %g", math.Sqrt(square))
		}
	}
	_, err = e.Embed([]string{""}, PoolingMean)
	expectCode(t, err, InvalidArgument, "")
}

func TestErrorsSayWhatToDo(t *testing.T) {
	_, err := Open(Options{Model: "no-such.gguf"})
	expectCode(t, err, NotFound, "no-such.gguf")
	_, err = Open(Options{})
	expectCode(t, err, InvalidArgument, "")
	_, err = Open(Options{Model: "a\x00b"})
	expectCode(t, err, InvalidArgument, "zero byte")
	_, err = Open(Options{Model: demo, Device: "cpu", RAMBytes: 1 << 20})
	expectCode(t, err, OutOfBudget, "")
	_, err = Open(Options{Model: "millrace_test.go"})
	var told *Error
	if !errors.As(err, &told) {
		t.Fatal(err)
	}
	e := openDemo(t)
	_, err = e.Generate(context.Background(), Request{MaxTokens: 3, RepeatPenalty: 1}, nil)
	expectCode(t, err, InvalidArgument, "")
	_, err = e.Generate(context.Background(), Request{Messages: func() {}}, nil)
	expectCode(t, err, InvalidArgument, "")
	e.Close()
	e.Close()
	_, err = e.Generate(context.Background(), greedy("?", 1), nil)
	expectCode(t, err, InvalidArgument, "closed")
	if err := Load("another.so"); err == nil {
		t.Fatal("a second library")
	}
}

func TestReads(t *testing.T) {
	whole, err := os.ReadFile(draft)
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"auto", "pread", "mmap"} {
		loader, err := OpenLoader(draft, LoaderOptions{Backend: backend, RequestBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		if loader.Size() != uint64(len(whole)) || loader.Backend() == "" {
			t.Fatal(loader.Size(), loader.Backend())
		}
		var reads []Read
		var parts [][]byte
		offsets := []uint64{0, 1, 4095, 4096, 70001, uint64(len(whole)) - 5}
		for i, offset := range offsets {
			part := make([]byte, min(uint64(1+50_000*i), uint64(len(whole))-offset))
			read, err := loader.Enqueue(offset, part)
			if err != nil {
				t.Fatal(err)
			}
			reads, parts = append(reads, read), append(parts, part)
		}
		if err := loader.Submit(); err != nil {
			t.Fatal(err)
		}
		for i := len(reads) - 1; i >= 0; i-- {
			for done := false; !done; {
				if done, err = reads[i].Done(); err != nil {
					t.Fatal(err)
				}
			}
			if err := reads[i].Wait(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(parts[i], whole[offsets[i]:offsets[i]+uint64(len(parts[i]))]) {
				t.Errorf("%s: read %d has other bytes", backend, i)
			}
		}
		part := make([]byte, 100)
		if _, err := loader.ReadAt(part, 1234); err != nil || !bytes.Equal(part, whole[1234:1334]) {
			t.Errorf("%s: %v", backend, err)
		}
		if _, err := loader.ReadAt(part, int64(len(whole))-50); err == nil {
			t.Errorf("%s: a read past the end", backend)
		}
		_, err = loader.Enqueue(0, nil)
		expectCode(t, err, InvalidArgument, "")
		loader.Close()
		_, err = loader.Enqueue(0, part)
		expectCode(t, err, InvalidArgument, "closed")
	}
	_, err = OpenLoader("no-such-file", LoaderOptions{})
	expectCode(t, err, NotFound, "no-such-file")
	_, err = OpenLoader(draft, LoaderOptions{Backend: "floppy"})
	expectCode(t, err, InvalidArgument, "floppy")
}

// On Windows a Go program's code page is not UTF-8, and the library's text is.
func TestNamesOfOtherScripts(t *testing.T) {
	whole, err := os.ReadFile(demo)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(tempDir(t), "水車")
	path := filepath.Join(folder, "modèle.gguf")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	loader, err := OpenLoader(path, LoaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	part := make([]byte, 100)
	if _, err := loader.ReadAt(part, 1234); err != nil || !bytes.Equal(part, whole[1234:1334]) {
		t.Error(err)
	}
	loader.Close()
	e, err := Open(Options{Model: path, Device: "cpu", ContextTokens: 512})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	result, err := e.Generate(context.Background(), greedy("What is the capital of France?", 20), nil)
	if err != nil || !strings.Contains(result.Text, "Paris") {
		t.Fatalf("%q, %v", result.Text, err)
	}
	_, err = Open(Options{Model: filepath.Join(folder, "été.gguf")})
	expectCode(t, err, NotFound, "été.gguf")
}

func TestPoolsKeepWhatIsInUse(t *testing.T) {
	whole, err := os.ReadFile(draft)
	if err != nil {
		t.Fatal(err)
	}
	loader, err := OpenLoader(draft, LoaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer loader.Close()
	const size = 32 << 10
	pieces := make([]Piece, 20)
	for i := range pieces {
		pieces[i] = Piece{uint64(i) * 33_333, size - uint64(i)}
	}
	pool, err := OpenPool(loader, pieces, PoolOptions{MemoryBytes: 8 * (size + 8192)})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for round := 0; round < 3; round++ {
		for i := range pieces {
			if i%4 == 0 {
				if err := pool.Prefetch([]uint32{uint32(i), uint32((i + 1) % len(pieces))}); err != nil {
					t.Fatal(err)
				}
			}
			data, err := pool.Acquire(uint32(i))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(data, whole[pieces[i].Offset:pieces[i].Offset+pieces[i].Bytes]) {
				t.Errorf("piece %d has other bytes", i)
			}
			if err := pool.Release(uint32(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	counters, err := pool.Counters()
	if err != nil || counters.Slots < 2 || counters.Misses == 0 || counters.Evictions == 0 || counters.BytesFromDisk == 0 {
		t.Fatalf("%+v, %v", counters, err)
	}
	held := 0
	for err == nil && held < len(pieces) {
		if _, err = pool.Acquire(uint32(held)); err == nil {
			held++
		}
	}
	expectCode(t, err, Unavailable, "")
	if uint64(held) != counters.Slots {
		t.Errorf("%d pieces are held in %d slots", held, counters.Slots)
	}
	for i := 0; i < held; i++ {
		if err := pool.Release(uint32(i)); err != nil {
			t.Fatal(err)
		}
	}
	if gone, err := pool.Unmap(size); err != nil || gone == 0 {
		t.Fatal(gone, err)
	}
	if err := pool.Map(0); err != nil {
		t.Fatal(err)
	}
	_, err = pool.Acquire(99)
	expectCode(t, err, InvalidArgument, "")
	_, err = pool.AcquireDevice(0)
	expectCode(t, err, InvalidArgument, "host")
	_, err = OpenPool(loader, pieces, PoolOptions{})
	expectCode(t, err, OutOfBudget, "least")
}

func TestTensorsAndProducts(t *testing.T) {
	tensors, err := Tensors(draft)
	if err != nil || len(tensors) < 10 {
		t.Fatal(len(tensors), err)
	}
	file, err := os.ReadFile(draft)
	if err != nil {
		t.Fatal(err)
	}
	for _, tensor := range tensors {
		if len(tensor.Shape) != 2 || tensor.Kind != 1 {
			continue
		}
		cols, rows := int64(tensor.Shape[0]), int64(tensor.Shape[1])
		data := file[tensor.Offset : tensor.Offset+uint64(rows*cols*2)]
		weights, err := Dequantize(tensor.Kind, data, rows, cols, 1)
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, cols)
		for i := range x {
			x[i] = float32(i%7) - 3
		}
		y, err := Gemv(tensor.Kind, data, rows, cols, x, 2)
		if err != nil {
			t.Fatal(err)
		}
		for r := range y {
			sum := 0.0
			for i := range x {
				sum += float64(weights[r*int(cols)+i]) * float64(x[i])
			}
			if math.Abs(sum-float64(y[r])) > 1e-3*(1+math.Abs(sum)) {
				t.Fatalf("%s row %d: %g for %g", tensor.Name, r, y[r], sum)
			}
		}
		_, err = Gemv(tensor.Kind, data[1:], rows, cols, x, 2)
		expectCode(t, err, InvalidArgument, "")
		break
	}
	_, err = Dequantize(999, file[:64], 1, 32, 1)
	expectCode(t, err, Unsupported, "")
	_, err = Tensors("millrace_test.go")
	expectCode(t, err, Corrupt, "GGUF")
	for cut := 0; cut < 4096; cut += 61 { // a header that ends anywhere
		path := filepath.Join(tempDir(t), "cut.gguf")
		if err := os.WriteFile(path, file[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Tensors(path)
		expectCode(t, err, Corrupt, "cut.gguf")
	}
}
