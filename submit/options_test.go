package submit

import (
	"reflect"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Every option of a request gets into its task, and back into the request of a redrive.
func TestOptionsSurviveARedrive(t *testing.T) {
	full := new(proto.TaskOptions)
	for v, i := reflect.ValueOf(full).Elem(), 0; i < v.NumField(); i++ {
		switch f := v.Field(i); {
		case !v.Type().Field(i).IsExported():
		case f.CanUint():
			f.SetUint(7)
		case f.Kind() == reflect.Slice:
			f.Set(reflect.ValueOf([]string{"gpu=yes"}))
		default:
			t.Fatalf("no value for %s", v.Type().Field(i).Name)
		}
		var r wire.Request
		SetOptions(&r, full)
		if got := options(&r); v.Type().Field(i).IsExported() && !reflect.DeepEqual(got, full) {
			t.Errorf("with %s: %v, want %v", v.Type().Field(i).Name, got, full)
		}
	}
	if options(new(wire.Request)) != nil {
		t.Error("a request without options has some")
	}
}
