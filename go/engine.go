package millrace

import (
	"context"
	"encoding/json"
	"runtime"
	"sync"
	"unsafe"
)

// Options say which model an engine opens and what it may take. What is left alone has its default.
type Options struct {
	Model         string // a GGUF file; the first of its splits
	Device        string // "auto" (default), "cpu", "cuda"
	RAMBytes      uint64 // cap on memory beyond what the process holds now; 0: what the machine can spare
	VRAMBytes     uint64 // cap on device memory; 0: what is free
	ContextTokens int64  // of one sequence; 0: the model's, or what fits
	MaxSequences  int64  // requests computed side by side; 0: 1
	Threads       int    // 0: all processors
	Speculate     string // guessed tokens of a pass, which change no answer: "auto" (default), "off", or a number
	Draft         string // what guesses: a small model of the same vocabulary, "self", "self:K" or "mtp"; "": earlier text
}

type cOptions struct {
	structSize                  uintptr
	model, device               *byte
	ramBytes, vramBytes         uint64
	contextTokens, maxSequences int64
	threads                     int32
	speculate, draft            *byte
}

func (o Options) toC() (*cOptions, error) {
	if err := Load(""); err != nil {
		return nil, err
	}
	for what, text := range map[string]string{"Model": o.Model, "Device": o.Device, "Speculate": o.Speculate, "Draft": o.Draft} {
		if err := checkText(what, text); err != nil {
			return nil, err
		}
	}
	out := new(cOptions)
	c.initOptions(unsafe.Pointer(out), unsafe.Sizeof(*out))
	out.model, out.draft = cText(o.Model), cText(o.Draft)
	if o.Device != "" {
		out.device = cText(o.Device)
	}
	if o.Speculate != "" {
		out.speculate = cText(o.Speculate)
	}
	out.ramBytes, out.vramBytes, out.contextTokens = o.RAMBytes, o.VRAMBytes, o.ContextTokens
	if o.MaxSequences != 0 {
		out.maxSequences = o.MaxSequences
	}
	out.threads = int32(o.Threads)
	return out, nil
}

// Form is how a plan is written.
type Form int32

// Forms of plans.
const (
	Text Form = iota
	JSON
)

// Plan tells where the weights would live and how fast that would be, without reading any.
func Plan(options Options, form Form) (string, error) {
	o, err := options.toC()
	if err != nil {
		return "", err
	}
	var text unsafe.Pointer
	if err := call(func() int32 { return c.plan(o, int32(form), &text) }); err != nil {
		return "", err
	}
	defer c.free(text)
	return textAt(text), nil
}

// Engine is a model that is open.
type Engine struct{ handle unsafe.Pointer }

// Open opens a model, which may take as long as reading it.
func Open(options Options) (*Engine, error) {
	o, err := options.toC()
	if err != nil {
		return nil, err
	}
	e := new(Engine)
	if err := call(func() int32 { return c.open(o, &e.handle) }); err != nil {
		return nil, err
	}
	return e, nil
}

// Close ends what still runs. A second one does nothing.
func (e *Engine) Close() {
	if e.handle != nil {
		c.close(e.handle)
		e.handle = nil
	}
}

var errClosed = &Error{InvalidArgument, "it is closed"}

func (e *Engine) call(function func() int32) error {
	if e == nil || e.handle == nil {
		return errClosed
	}
	return call(function)
}

// Plan tells where the weights are.
func (e *Engine) Plan(form Form) (string, error) {
	var text unsafe.Pointer
	if err := e.call(func() int32 { return c.enginePlan(e.handle, int32(form), &text) }); err != nil {
		return "", err
	}
	defer c.free(text)
	return textAt(text), nil
}

// Tokenize gives the text's tokens. special: "<|im_end|>" and the like become the tokens they name, which is not for
// text that came from users.
func (e *Engine) Tokenize(text string, special bool) ([]int32, error) {
	var ids unsafe.Pointer
	var count uintptr
	bytes := []byte(text)
	err := e.call(func() int32 {
		return c.tokenize(e.handle, first(bytes), uintptr(len(bytes)), asInt(special), &ids, &count)
	})
	if err != nil {
		return nil, err
	}
	return taken[int32](ids, int(count)), nil
}

// Detokenize gives the tokens' text. special: control tokens are spelled out.
func (e *Engine) Detokenize(ids []int32, special bool) (string, error) {
	var text unsafe.Pointer
	var length uintptr
	err := e.call(func() int32 {
		return c.detokenize(e.handle, first(ids), uintptr(len(ids)), asInt(special), &text, &length)
	})
	if err != nil {
		return "", err
	}
	return string(taken[byte](text, int(length))), nil
}

// Message is one of a conversation, in OpenAI's form.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ChatTokens makes the prompt that the model's chat template makes of a conversation: anything that becomes a JSON
// array of messages ([]Message, or what OpenAI's API takes). tools (a JSON array) and variables (a JSON object for the
// template) may be nil.
func (e *Engine) ChatTokens(messages, tools, variables any) ([]int32, error) {
	var texts [3]*byte
	for i, value := range []any{messages, tools, variables} {
		if value == nil {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, &Error{InvalidArgument, err.Error()}
		}
		texts[i] = cText(string(text))
	}
	var ids unsafe.Pointer
	var count uintptr
	err := e.call(func() int32 { return c.chatTokens(e.handle, texts[0], texts[1], texts[2], &ids, &count) })
	if err != nil {
		return nil, err
	}
	return taken[int32](ids, int(count)), nil
}

// Request is what an answer is to be made of: one of Messages, Prompt and Tokens. NewRequest gives the defaults.
type Request struct {
	Messages any     // as for ChatTokens
	Prompt   string  // text to go on with, special tokens parsed
	Tokens   []int32 // a prompt in tokens

	MaxTokens     int64   // -1: to the end of the context
	Temperature   float64 // 0: always the likeliest token
	TopK          int     // 0: all
	TopP, MinP    float64
	RepeatPenalty float64 // 1: none
	Seed          uint64
	Stop          []string // texts that end the answer
}

type cRequest struct {
	structSize       uintptr
	messages, prompt *byte
	tokens           *int32
	tokenCount       uintptr
	maxTokens        int64
	temperature      float64
	topK             int32
	topP, minP       float64
	repeatPenalty    float64
	seed             uint64
	stop             **byte
	stopCount        uintptr
}

// NewRequest has the library's defaults and a conversation of one message.
func NewRequest(text string) Request {
	return Request{Messages: []Message{{"user", text}}, MaxTokens: -1, Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05,
		RepeatPenalty: 1}
}

func (r Request) toC() (*cRequest, error) {
	out := new(cRequest)
	c.initRequest(unsafe.Pointer(out), unsafe.Sizeof(*out))
	if r.Messages != nil {
		text, err := json.Marshal(r.Messages)
		if err != nil {
			return nil, &Error{InvalidArgument, err.Error()}
		}
		out.messages = cText(string(text))
	}
	if err := checkText("Prompt", r.Prompt); err != nil {
		return nil, err
	}
	out.prompt = cText(r.Prompt)
	out.tokens, out.tokenCount = first(r.Tokens), uintptr(len(r.Tokens))
	out.maxTokens, out.temperature, out.topK, out.topP = r.MaxTokens, r.Temperature, int32(r.TopK), r.TopP
	out.minP, out.repeatPenalty, out.seed = r.MinP, r.RepeatPenalty, r.Seed
	stops := make([]*byte, 0, len(r.Stop))
	for _, stop := range r.Stop {
		if err := checkText("Stop", stop); err != nil {
			return nil, err
		}
		stops = append(stops, &append([]byte(stop), 0)[0])
	}
	out.stop, out.stopCount = first(stops), uintptr(len(stops))
	return out, nil
}

// Finish is why an answer ended.
type Finish int32

// Reasons.
const (
	Stopped   Finish = iota // the model's end, or a stop text
	MaxLength               // MaxTokens, or the context is full
	GivenUp                 // by the callback, the context or Cancel
)

// Result is what an answer took.
type Result struct {
	Text                         string
	Finish                       Finish
	PromptTokens, AnswerTokens   int64
	PromptSeconds, AnswerSeconds float64
}

type cResult struct {
	structSize                   uintptr
	finish                       int32
	promptTokens, answerTokens   int64
	promptSeconds, answerSeconds float64
}

// Answers under way: the library's callback knows them by number.
var answers struct {
	sync.Mutex
	last    uintptr
	running map[uintptr]func(piece string) bool
}

// tellText is the library's callback; anything but 0 ends the answer.
func tellText(user uintptr, text unsafe.Pointer, length uintptr) uintptr {
	answers.Lock()
	tell := answers.running[user]
	answers.Unlock()
	if tell == nil || !tell(string(unsafe.Slice((*byte)(text), int(length)))) {
		return 1
	}
	return 0
}

// Generate writes an answer. tellPiece (may be nil) sees it piece by piece, in whole characters, on the calling goroutine;
// false ends it. So does ctx, at the next piece.
func (e *Engine) Generate(ctx context.Context, request Request, tellPiece func(piece string) bool) (Result, error) {
	if e == nil || e.handle == nil {
		return Result{}, errClosed
	}
	r, err := request.toC()
	if err != nil {
		return Result{}, err
	}
	var all []byte
	var panicked any
	tell := func(piece string) (goesOn bool) {
		defer func() { // no panic may cross the library's frames
			if panicked = recover(); panicked != nil {
				goesOn = false
			}
		}()
		all = append(all, piece...)
		return ctx.Err() == nil && (tellPiece == nil || tellPiece(piece))
	}
	answers.Lock()
	if answers.running == nil {
		answers.running = map[uintptr]func(string) bool{}
	}
	answers.last++
	number := answers.last
	answers.running[number] = tell
	answers.Unlock()
	defer func() {
		answers.Lock()
		delete(answers.running, number)
		answers.Unlock()
	}()
	result := new(cResult)
	c.initResult(unsafe.Pointer(result), unsafe.Sizeof(*result))
	err = e.call(func() int32 { return c.generate(e.handle, r, onText, number, result) })
	runtime.KeepAlive(request)
	if panicked != nil {
		panic(panicked)
	}
	if err == nil {
		err = ctx.Err()
	}
	return Result{string(all), Finish(result.finish), result.promptTokens, result.answerTokens, result.promptSeconds,
		result.answerSeconds}, err
}

// Pooling is how the states of a text's tokens become one vector.
type Pooling int32

// Poolings.
const (
	PoolingOfModel Pooling = iota // as the file says; the last token's where it says nothing
	PoolingMean
	PoolingFirst
	PoolingLast
)

// Embed gives a vector of length 1 for each text, computed side by side.
func (e *Engine) Embed(texts []string, pooling Pooling) ([][]float32, error) {
	pointers := make([]*byte, 0, len(texts))
	for _, text := range texts {
		if err := checkText("a text", text); err != nil {
			return nil, err
		}
		pointers = append(pointers, &append([]byte(text), 0)[0])
	}
	var vectors unsafe.Pointer
	var dimensions uintptr
	err := e.call(func() int32 {
		return c.embed(e.handle, first(pointers), uintptr(len(pointers)), int32(pooling), &vectors, &dimensions)
	})
	if err != nil {
		return nil, err
	}
	all := taken[float32](vectors, len(texts)*int(dimensions))
	out := make([][]float32, len(texts))
	for i := range out {
		out[i] = all[i*int(dimensions) : (i+1)*int(dimensions) : (i+1)*int(dimensions)]
	}
	return out, nil
}

// Cancel ends every answer that is being written, and every Embed, within one pass. Any goroutine may call it.
func (e *Engine) Cancel() {
	if e != nil && e.handle != nil {
		c.cancel(e.handle)
	}
}

const draftPlaces = 31

// Counters of an engine since it was opened, and what it holds now.
type Counters struct {
	Passes                             uint64
	BytesFromDisk, BytesUsed           uint64 // of weights
	ExpertHits, ExpertMisses           uint64
	StallNanoseconds                   uint64 // waited for the disk
	RAMGranted, RAMCap                 uint64 // bytes
	VRAMGranted, VRAMCap               uint64 // bytes; 0 without a GPU
	ContextTokens                      int64
	ColdExpertMisses, MostExpertMisses uint64  // of the first pass that used experts; of any behind it, at most
	SteadyExpertMisses                 float64 // a pass, lately
	ExpertsResident                    uint64
	Drafts, DraftsRight                uint64 // guessed tokens that passes verified, and that became answers'
	DraftsAt, DraftsRightAt            [draftPlaces]uint64
	DraftPasses                        uint64 // that verified some
	DraftSeconds, VerifySeconds        float64
	TokensAPass                        float64 // that a request gets of one, on average
}

type cCounters struct {
	structSize uintptr
	counters   Counters
}

// Counters reads them.
func (e *Engine) Counters() (Counters, error) {
	out := new(cCounters)
	err := e.call(func() int32 {
		c.initCounters(unsafe.Pointer(out), unsafe.Sizeof(*out))
		return c.readCounters(e.handle, out)
	})
	return out.counters, err
}
