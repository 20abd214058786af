package settings

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/wire"
)

// A Field is one setting, described by the tags of its field in a struct of sections:
// [Settings], or a larger one that embeds it. Its methods take a pointer to that struct.
type Field struct {
	Key   string // for example net.listen
	Tag   reflect.StructTag
	Type  reflect.Type
	index []int // for FieldByIndex
}

// Fields lists the settings of a struct of sections in the order of its fields. It leaves
// out the handlers, which are a list of structs and not a value.
func Fields(t reflect.Type) []Field { return collect(t, "", nil) }

func collect(t reflect.Type, prefix string, index []int) (out []Field) {
	for _, f := range reflect.VisibleFields(t) {
		at := slices.Concat(index, f.Index)
		switch key := prefix + f.Tag.Get("yaml"); {
		case f.Anonymous, f.Type == reflect.TypeFor[[]wire.HandlerSpec]():
		case f.Type.Kind() == reflect.Struct:
			out = append(out, collect(f.Type, key+".", at)...)
		default:
			out = append(out, Field{Key: key, Tag: f.Tag, Type: f.Type, index: at})
		}
	}
	return out
}

// SetDefaults sets each setting of root to its default.
func SetDefaults(root any) {
	for _, f := range Fields(reflect.TypeOf(root).Elem()) {
		if text := f.Tag.Get("default"); text != "" {
			if err := f.Set(root, text); err != nil {
				panic(fmt.Sprintf("settings: default of %s: %v", f.Key, err))
			}
		}
	}
}

// Default returns the default for display: its value, or a description of how the node
// computes it.
func (f Field) Default() string {
	return cmp.Or(f.Tag.Get("defaultText"), f.Tag.Get("default"))
}

// computed reports whether the node computes the value.
func (f Field) computed(root any) bool {
	return f.Tag.Get("default") == "" && f.value(root).IsZero()
}

func (f Field) value(root any) reflect.Value {
	return reflect.ValueOf(root).Elem().FieldByIndex(f.index)
}

// Limits describes the allowed values.
func (f Field) Limits() string {
	low, high, enum := f.Tag.Get("min"), f.Tag.Get("max"), f.Tag.Get("enum")
	switch {
	case enum != "":
		return strings.ReplaceAll(enum, ",", ", ")
	case low != "" && high != "":
		return low + " to " + high
	case low != "":
		return "at least " + low
	case high != "":
		return "at most " + high
	}
	return ""
}

// Set parses text into the setting of root.
func (f Field) Set(root any, text string) error {
	v, err := f.parse(text)
	if err == nil {
		f.value(root).Set(v)
	}
	return err
}

func (f Field) parse(text string) (reflect.Value, error) {
	var v any
	var err error
	switch f.Type {
	case reflect.TypeFor[string]():
		v = text
	case reflect.TypeFor[int]():
		if v, err = strconv.Atoi(text); err != nil {
			err = fmt.Errorf("%.40q is not a whole number", text)
		}
	case reflect.TypeFor[Bytes]():
		v, err = ParseBytes(text)
	case reflect.TypeFor[time.Duration]():
		var d wire.Duration
		d, err = wire.ParseDuration(text)
		v = time.Duration(d)
	case reflect.TypeFor[bool]():
		v, err = parseSwitch(text)
	case reflect.TypeFor[float64]():
		if n, bad := strconv.ParseFloat(text, 64); bad != nil || !isWeight(n) {
			err = fmt.Errorf("%.40q is not a number from 0 to %d", text, maxNumber)
		} else {
			v = n
		}
	case reflect.TypeFor[[]string]():
		v = splitList(text)
	default:
		panic("settings: no parser for settings of type " + f.Type.String())
	}
	return reflect.ValueOf(v), err
}

// maxNumber is the upper limit of floating-point settings.
const maxNumber = 1_000_000

func isWeight(n float64) bool { return n >= 0 && n <= maxNumber } // false for NaN

// parseSwitch parses on, off and the YAML words for them.
func parseSwitch(text string) (bool, error) {
	switch text {
	case "on", "true", "yes":
		return true, nil
	case "off", "false", "no":
		return false, nil
	}
	return false, fmt.Errorf("%.40q is neither on nor off", text)
}

func splitList(text string) (out []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// IsList reports whether the setting is a list of words.
func (f Field) IsList() bool { return f.Type.Kind() == reflect.Slice }

// SetList sets the setting of root, which is a list of words.
func (f Field) SetList(root any, items []string) { f.value(root).Set(reflect.ValueOf(items)) }

// Text formats the setting of root in the form that Set parses.
func (f Field) Text(root any) string { return format(f.value(root)) }

func format(v reflect.Value) string {
	switch v := v.Interface().(type) {
	case []string:
		return strings.Join(v, ",")
	case bool:
		if v {
			return "on"
		}
		return "off"
	case time.Duration:
		return wire.Duration(v).String()
	default:
		return fmt.Sprint(v)
	}
}

// CheckLimits compares the setting of root with the limits in the tags.
func (f Field) CheckLimits(root any) error {
	v := f.value(root)
	switch n := v.Interface().(type) {
	case string:
		if enum := f.Tag.Get("enum"); enum != "" && !slices.Contains(strings.Split(enum, ","), n) {
			return fmt.Errorf("%.40q is not one of %s%s", n, f.Limits(), Suggest(n, strings.Split(enum, ",")))
		}
	case float64:
		if !isWeight(n) {
			return fmt.Errorf("%v is not a number from 0 to %d", n, maxNumber)
		}
	case int, Bytes, time.Duration:
		return f.checkRange(v)
	}
	return nil
}

func (f Field) checkRange(v reflect.Value) error {
	n := v.Int()
	if n < 0 {
		if f.Key == "limits.memory_limit" { // none
			return nil
		}
		return fmt.Errorf("%s is negative", format(v))
	}
	if n < f.bound("min", 0) {
		return fmt.Errorf("%s is too small: %s", format(v), f.Limits())
	}
	if n > f.bound("max", math.MaxInt64) {
		return fmt.Errorf("%s is too large: %s", format(v), f.Limits())
	}
	return nil
}

// bound returns the limit in a tag, or without one what is given.
func (f Field) bound(tag string, without int64) int64 {
	text := f.Tag.Get(tag)
	if text == "" {
		return without
	}
	v, err := f.parse(text)
	if err != nil {
		panic(fmt.Sprintf("settings: %s of %s: %v", tag, f.Key, err))
	}
	return v.Int()
}
