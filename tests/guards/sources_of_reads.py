"""Kinds of reads, each as the text of a module with `read(y)`, `change()` and, where the process is changed, `undo()`."""

# ruff: noqa: E501

SOURCES: dict[str, str] = {
    "weakref proxy": r"""
import weakref
class C: pass
c = C(); c.v = 2.0
p = weakref.proxy(c)
def read(y): return y * p.v
def change(): c.v = 3.0
""",
    "WeakValueDictionary": r"""
import weakref
class C: pass
c = C(); c.v = 2.0
d = C(); d.v = 3.0
w = weakref.WeakValueDictionary(a=c)
def read(y): return y * w['a'].v
def change(): w['a'] = d
""",
    "WeakKeyDictionary": r"""
import weakref
class C: pass
c = C()
w = weakref.WeakKeyDictionary(); w[c] = 2.0
def read(y): return y * w[c]
def change(): w[c] = 3.0
""",
    "data descriptor": r"""
class D:
    def __init__(self): self.v = 2.0
    def __get__(self, o, t=None): return self.v
    def __set__(self, o, v): self.v = v
class C: a = D()
c = C()
def read(y): return y * c.a
def change(): c.a = 3.0
""",
    "descriptor with per-instance store": r"""
class D:
    def __set_name__(self, o, n): self.n = '_' + n
    def __get__(self, o, t=None): return getattr(o, self.n)
    def __set__(self, o, v): setattr(o, self.n, v)
class C:
    a = D()
    def __init__(self): self.a = 2.0
c = C()
def read(y): return y * c.a
def change(): c.a = 3.0
""",
    "descriptor replaced on class": r"""
class D:
    def __init__(self, v): self.v = v
    def __get__(self, o, t=None): return self.v
class C: a = D(2.0)
c = C()
def read(y): return y * c.a
def change(): C.a = D(3.0)
""",
    "ChainMap": r"""
import collections
base = {'a': 2.0}
m = collections.ChainMap({}, base)
def read(y): return y * m['a']
def change(): m['a'] = 3.0
""",
    "ChainMap parent": r"""
import collections
base = {'a': 2.0}
m = collections.ChainMap({}, base)
def read(y): return y * m['a']
def change(): base['a'] = 3.0
""",
    "UserDict": r"""
import collections
m = collections.UserDict(a=2.0)
def read(y): return y * m['a']
def change(): m['a'] = 3.0
""",
    "UserList": r"""
import collections
m = collections.UserList([2.0])
def read(y): return y * m[0]
def change(): m[0] = 3.0
""",
    "Counter": r"""
import collections
m = collections.Counter(a=2)
def read(y): return y * m['a']
def change(): m.update(['a'])
""",
    "MappingProxyType": r"""
import types
d = {'a': 2.0}
m = types.MappingProxyType(d)
def read(y): return y * m['a']
def change(): d['a'] = 3.0
""",
    "SimpleNamespace": r"""
import types
m = types.SimpleNamespace(a=2.0)
def read(y): return y * m.a
def change(): m.a = 3.0
""",
    "singledispatch registers": r"""
import functools, torch
@functools.singledispatch
def f(y): return y * 2.0
def read(y): return f(y)
def change():
    @f.register(torch.Tensor)
    def _(y): return y * 3.0
""",
    "singledispatch impl global": r"""
import functools, torch
V = 2.0
@functools.singledispatch
def f(y): return y
@f.register(torch.Tensor)
def _(y): return y * V
def read(y): return f(y)
def change():
    global V; V = 3.0
""",
    "match statement class attr": r"""
class Cfg: mode = 'a'
def read(y):
    match Cfg.mode:
        case 'a': return y * 2.0
        case _: return y * 3.0
def change(): Cfg.mode = 'b'
""",
    "match value pattern": r"""
class Names: A = 'a'
cur = 'a'
def read(y):
    match cur:
        case Names.A: return y * 2.0
        case _: return y * 3.0
def change(): Names.A = 'z'
""",
    "match class pattern": r"""
class P:
    __match_args__ = ('v',)
    def __init__(self, v): self.v = v
o = P(2.0)
def read(y):
    match o:
        case P(v): return y * v
def change(): o.v = 3.0
""",
    "match mapping pattern": r"""
cfg = {'k': 2.0}
def read(y):
    match cfg:
        case {'k': v}: return y * v
def change(): cfg['k'] = 3.0
""",
    "metaclass attribute": r"""
class M(type): v = 2.0
class C(metaclass=M): pass
def read(y): return y * C.v
def change(): M.v = 3.0
""",
    "metaclass property": r"""
class M(type):
    @property
    def v(cls): return cls._v
class C(metaclass=M): _v = 2.0
def read(y): return y * C.v
def change(): C._v = 3.0
""",
    "metaclass __getattr__": r"""
T = {'v': 2.0}
class M(type):
    def __getattr__(cls, n): return T[n]
class C(metaclass=M): pass
def read(y): return y * C.v
def change(): T['v'] = 3.0
""",
    "metaclass __call__": r"""
class M(type):
    def __call__(cls, *a): return 2.0
class C(metaclass=M): pass
def read(y): return y * C()
def change(): M.__call__ = lambda cls, *a: 3.0
""",
    "class __init__ replaced": r"""
class C:
    def __init__(self): self.v = 2.0
def read(y): return y * C().v
def new(self): self.v = 3.0
def change(): C.__init__ = new
""",
    "class __new__": r"""
class C:
    def __new__(cls): o = object.__new__(cls); o.v = 2.0; return o
def read(y): return y * C().v
def change():
    def new(cls): o = object.__new__(cls); o.v = 3.0; return o
    C.__new__ = new
""",
    "dataclass default of a made object": r"""
import dataclasses
D = [2.0]
@dataclasses.dataclass
class C:
    v: list = dataclasses.field(default_factory=lambda: D[0])
def read(y): return y * C().v
def change(): D[0] = 3.0
""",
    "module reload": r"""
import sys, importlib, tempfile, os
d = tempfile.mkdtemp(); sys.path.insert(0, d); sys.dont_write_bytecode = True
name = 'cfg_reload_%d' % id(d)
open(os.path.join(d, name + '.py'), 'w').write('V = 2.0\ndef f(y): return y * V\n')
mod = importlib.import_module(name)
def read(y): return mod.f(y)
def change():
    open(os.path.join(d, name + '.py'), 'w').write('V = 3.00\ndef f(y): return y * V\n')
    importlib.reload(mod)
""",
    "import inside forward": r"""
import sys, types
m = types.ModuleType('imp_inside'); m.V = 2.0; sys.modules['imp_inside'] = m
def read(y):
    import imp_inside
    return y * imp_inside.V
def change(): m.V = 3.0
""",
    "import from inside forward": r"""
import sys, types
m = types.ModuleType('imp_inside2'); m.V = 2.0; sys.modules['imp_inside2'] = m
def read(y):
    from imp_inside2 import V
    return y * V
def change(): m.V = 3.0
""",
    "sys.modules replaced, import inside": r"""
import sys, types
m = types.ModuleType('imp_inside3'); m.V = 2.0; sys.modules['imp_inside3'] = m
n = types.ModuleType('imp_inside3'); n.V = 3.0
def read(y):
    import imp_inside3
    return y * imp_inside3.V
def change(): sys.modules['imp_inside3'] = n
""",
    "monkeypatched builtins": r"""
import builtins
def read(y): return y * float(abs(-2.0))
old = builtins.abs
def change(): builtins.abs = lambda v: 3.0
def undo(): builtins.abs = old
""",
    "f-string keyed dict": r"""
d = {'k1': 2.0}
i = 1
def read(y): return y * d[f'k{i}']
def change(): d['k1'] = 3.0
""",
    "f-string index": r"""
d = {'k1': 2.0, 'k2': 3.0}
i = 1
def read(y): return y * d[f'k{i}']
def change():
    global i; i = 2
""",
    "numpy scalar": r"""
import numpy as np
s = np.float32(2.0)
def read(y): return y * float(s)
def change():
    global s; s = np.float32(3.0)
""",
    "numpy 0-d array item": r"""
import numpy as np
s = np.array(2.0)
def read(y): return y * s.item()
def change(): s[()] = 3.0
""",
    "numpy structured array": r"""
import numpy as np
s = np.zeros(1, dtype=[('a', 'f8')]); s['a'] = 2.0
def read(y): return y * float(s['a'][0])
def change(): s['a'][0] = 3.0
""",
    "numpy memoryview": r"""
import numpy as np
a = np.array([2.0]); mv = memoryview(a)
def read(y): return y * mv[0]
def change(): a[0] = 3.0
""",
    "array.array": r"""
import array
a = array.array('d', [2.0])
def read(y): return y * a[0]
def change(): a[0] = 3.0
""",
    "Enum class attr": r"""
import enum
class E(enum.IntEnum): A = 2; B = 3
cur = {'e': E.A}
def read(y): return y * int(cur['e'])
def change(): cur['e'] = E.B
""",
    "Enum attribute set on member": r"""
import enum
class E(enum.Enum):
    A = 1
E.A.k = 2.0
def read(y): return y * E.A.k
def change(): E.A.k = 3.0
""",
    "Flag": r"""
import enum
class F(enum.Flag): A = 1; B = 2
f = F.A
def read(y): return y * (3.0 if F.B in f else 2.0)
def change():
    global f; f = F.A | F.B
""",
    "generator function global": r"""
V = [2.0, 0.0]
def g():
    for v in V: yield v
def read(y): return y * sum(g())
def change(): V[1] = 1.0
""",
    "generator expression over attr": r"""
class C: pass
items = [C()]; items[0].v = 2.0
def read(y): return y * sum(i.v for i in items)
def change(): items[0].v = 3.0
""",
    "comprehension over global": r"""
V = (2.0,)
def read(y): return y * [v for v in V][0]
def change():
    global V; V = (3.0,)
""",
    "default_factory": r"""
import collections
base = 2.0
d = collections.defaultdict(lambda: base)
def read(y): return y * dict(d).get('x', base)
def change():
    global base; base = 3.0
""",
    "lru_cache helper cleared": r"""
import functools
V = 2.0
@functools.lru_cache
def f(): return V
def read(y): return y * f()
def change():
    global V; V = 3.0; f.cache_clear()
""",
    "lru_cache args": r"""
import functools
table = {1: 2.0}
@functools.lru_cache
def f(a): return a * 2.0
i = 1
def read(y): return y * f(i)
def change():
    global i; i = 2
""",
    "cached_property": r"""
import functools
class C:
    def __init__(self): self.b = 2.0
    @functools.cached_property
    def a(self): return self.b
c = C(); c.a
def read(y): return y * c.a
def change(): c.b = 3.0; del c.__dict__['a']
""",
    "cached_property overwritten": r"""
import functools
class C:
    def __init__(self): self.b = 2.0
    @functools.cached_property
    def a(self): return self.b
c = C()
def read(y): return y * c.a
def change(): c.a = 3.0
""",
    "property with setter": r"""
class C:
    def __init__(self): self._a = 2.0
    @property
    def a(self): return self._a
    @a.setter
    def a(self, v): self._a = v
c = C()
def read(y): return y * c.a
def change(): c.a = 3.0
""",
    "frozen dataclass replaced": r"""
import dataclasses
@dataclasses.dataclass(frozen=True)
class C: v: float = 2.0
cfg = C()
def read(y): return y * cfg.v
def change():
    global cfg; cfg = dataclasses.replace(cfg, v=3.0)
""",
    "slots dataclass": r"""
import dataclasses
@dataclasses.dataclass(slots=True)
class C: v: float = 2.0
cfg = C()
def read(y): return y * cfg.v
def change(): cfg.v = 3.0
""",
    "eq always true": r"""
class C:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return True
    def __hash__(self): return 0
cfg = C(2.0)
def read(y): return y * cfg.v
def change():
    global cfg; cfg = C(3.0)
""",
    "eq always true in a list": r"""
class C:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return True
    def __hash__(self): return 0
L = [C(2.0)]
def read(y): return y * L[0].v
def change(): L[0] = C(3.0)
""",
    "eq always true in a set": r"""
class C:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return True
    def __hash__(self): return 0
S = {C(2.0)}
def read(y): return y * next(iter(S)).v
def change(): S.clear(); S.add(C(3.0))
""",
    "objects in a set changed": r"""
class C:
    def __init__(self, v): self.v = v
S = {C(2.0)}
def read(y): return y * sum(o.v for o in S)
def change():
    for o in S: o.v = 3.0
""",
    "objects in a frozenset changed": r"""
class C:
    def __init__(self, v): self.v = v
S = frozenset({C(2.0)})
def read(y): return y * sum(o.v for o in S)
def change():
    for o in S: o.v = 3.0
""",
    "int subclass": r"""
class I(int): pass
i = I(2); i.extra = 2.0
def read(y): return y * i.extra
def change(): i.extra = 3.0
""",
    "float subclass eq": r"""
class F(float):
    pass
f = F(2.0); f.k = 1.0
def read(y): return y * f * f.k
def change(): f.k = 2.0
""",
    "str subclass attribute": r"""
class S(str): pass
s = S('a'); s.v = 2.0
def read(y): return y * s.v
def change(): s.v = 3.0
""",
    "tuple subclass attr": r"""
class T(tuple): pass
t = T((1,)); t.v = 2.0
def read(y): return y * t.v
def change(): t.v = 3.0
""",
    "list subclass attr": r"""
class T(list): pass
t = T([1]); t.v = 2.0
def read(y): return y * t.v
def change(): t.v = 3.0
""",
    "dict subclass attr": r"""
class T(dict): pass
t = T(); t.v = 2.0
def read(y): return y * t.v
def change(): t.v = 3.0
""",
    "dict subclass __missing__": r"""
class T(dict):
    def __missing__(self, k): return self.d
t = T(); t.d = 2.0
def read(y): return y * t['q']
def change(): t.d = 3.0
""",
    "dict subclass __getitem__": r"""
class T(dict):
    def __getitem__(self, k): return F[0]
F = [2.0]
t = T(q=1)
def read(y): return y * t['q']
def change(): F[0] = 3.0
""",
    "NaN to number": r"""
import math
v = float('nan')
def read(y): return y * (2.0 if math.isnan(v) else 3.0)
def change():
    global v; v = 1.0
""",
    "0.0 to -0.0": r"""
import math
v = 0.0
def read(y): return y * (2.0 + math.copysign(1.0, v))
def change():
    global v; v = -0.0
""",
    "True to 1": r"""
v = True
def read(y): return y * (2.0 if v is True else 3.0)
def change():
    global v; v = 1
""",
    "int to float": r"""
v = 2
def read(y): return y * (2.0 if isinstance(v, int) else 3.0)
def change():
    global v; v = 2.0
""",
    "tensor requires_grad": r"""
import torch
t = torch.ones(1)
def read(y): return y * (3.0 if t.requires_grad else 2.0)
def change(): t.requires_grad_()
""",
    "tensor .data replaced": r"""
import torch
t = torch.tensor([2.0])
def read(y): return y * t
def change(): t.data = torch.tensor([3.0])
""",
    "tensor .data written": r"""
import torch
t = torch.tensor([2.0])
def read(y): return y * t
def change(): t.data.fill_(3.0)
""",
    "tensor written by numpy": r"""
import torch
t = torch.tensor([2.0]); n = t.numpy()
def read(y): return y * t
def change(): n[0] = 3.0
""",
    "tensor item": r"""
import torch
t = torch.tensor(2.0)
def read(y): return y * t.item()
def change(): t.fill_(3.0)
""",
    "tensor attribute": r"""
import torch
t = torch.tensor(2.0); t.k = 2.0
def read(y): return y * t.k
def change(): t.k = 3.0
""",
    "tensor grad attribute": r"""
import torch
t = torch.tensor([2.0], requires_grad=True); t.grad = torch.tensor([2.0])
def read(y): return y * t.grad
def change(): t.grad.fill_(3.0)
""",
    "tensor grad replaced": r"""
import torch
t = torch.tensor([2.0], requires_grad=True); t.grad = torch.tensor([2.0])
def read(y): return y * t.grad
def change(): t.grad = torch.tensor([3.0])
""",
    "tensor set_ / resize": r"""
import torch
t = torch.tensor([2.0])
def read(y): return y * t.numel() 
def change(): t.resize_(3)
""",
    "tensor in inference mode": r"""
import torch
with torch.inference_mode(): t = torch.tensor([2.0])
def read(y): return y * t.clone()
def change():
    with torch.inference_mode(): t.fill_(3.0)
""",
    "a module held in a global": r"""
import torch
lin = torch.nn.Linear(3, 3)
def read(y): return lin(y)
def change():
    with torch.no_grad(): lin.weight.mul_(2)
""",
    "a global module's weight replaced": r"""
import torch
lin = torch.nn.Linear(3, 3)
def read(y): return lin(y)
def change(): lin.weight = torch.nn.Parameter(lin.weight.data * 2)
""",
    "a global module's bias None": r"""
import torch
lin = torch.nn.Linear(3, 3)
def read(y): return lin(y)
def change(): lin.bias = None
""",
    "a global module's child replaced": r"""
import torch
seq = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
def read(y): return seq(y)
def change(): seq[1] = torch.nn.Tanh()
""",
    "a global module's hook": r"""
import torch
lin = torch.nn.Linear(3, 3)
def read(y): return lin(y)
def change(): lin.register_forward_hook(lambda m, a, o: o * 2)
""",
    "a global dropout's p": r"""
import torch
d = torch.nn.LeakyReLU(0.1)
def read(y): return d(y)
def change(): d.negative_slope = 0.7
""",
    "a global module's train flag": r"""
import torch
b = torch.nn.BatchNorm1d(3).eval(); b.running_mean.fill_(1.0)
def read(y): return b(y)
def change(): b.running_mean.fill_(2.0)
""",
    "torch function patched": r"""
import torch
old = torch.relu
def read(y): return torch.relu(y)
def change(): torch.relu = lambda y: y * 3
def undo(): torch.relu = old
""",
    "torch.nn.functional patched": r"""
import torch, torch.nn.functional as F
old = F.relu
def read(y): return F.relu(y)
def change(): F.relu = lambda y, *a: y * 3
def undo(): F.relu = old
""",
    "nn layer forward patched": r"""
import torch
old = torch.nn.ReLU.forward
r = torch.nn.ReLU()
def read(y): return r(y)
def change(): torch.nn.ReLU.forward = lambda self, y: y * 3
def undo(): torch.nn.ReLU.forward = old
""",
    "Tensor method patched": r"""
import torch
old = torch.Tensor.relu
def read(y): return y.relu()
def change(): torch.Tensor.relu = lambda y: y * 3
def undo(): torch.Tensor.relu = old
""",
    "Tensor new method": r"""
import torch
torch.Tensor.my_fancy = lambda y: y * 2
def read(y): return y.my_fancy()
def change(): torch.Tensor.my_fancy = lambda y: y * 3
def undo(): del torch.Tensor.my_fancy
""",
    "math patched": r"""
import math
old = math.sqrt
def read(y): return y * math.sqrt(4.0)
def change(): math.sqrt = lambda v: 3.0
def undo(): math.sqrt = old
""",
    "attribute set on torch module": r"""
import torch
torch.my_setting = 2.0
def read(y): return y * torch.my_setting
def change(): torch.my_setting = 3.0
def undo(): del torch.my_setting
""",
    "deterministic flag": r"""
import torch
def read(y): return y * (3.0 if torch.are_deterministic_algorithms_enabled() else 2.0)
def change(): torch.use_deterministic_algorithms(True)
def undo(): torch.use_deterministic_algorithms(False)
""",
    "sdpa backend flags": r"""
import torch
def read(y): return y * (3.0 if torch.backends.cuda.math_sdp_enabled() else 2.0)
def change(): torch.backends.cuda.enable_math_sdp(False)
def undo(): torch.backends.cuda.enable_math_sdp(True)
""",
    "backends flag attr": r"""
import torch
def read(y): return y * (3.0 if torch.backends.mkldnn.enabled else 2.0)
def change(): torch._C._set_mkldnn_enabled(False)
def undo(): torch._C._set_mkldnn_enabled(True)
""",
    "cudnn flag attr": r"""
import torch
def read(y): return y * (3.0 if torch.backends.cudnn.benchmark else 2.0)
def change(): torch.backends.cudnn.benchmark = True
def undo(): torch.backends.cudnn.benchmark = False
""",
    "float32 matmul precision": r"""
import torch
def read(y): return y * (3.0 if torch.get_float32_matmul_precision() == 'high' else 2.0)
def change(): torch.set_float32_matmul_precision('high')
def undo(): torch.set_float32_matmul_precision('highest')
""",
    "num threads": r"""
import torch
n = torch.get_num_threads()
def read(y): return y * float(torch.get_num_threads() + 1)
def change(): torch.set_num_threads(n + 1)
def undo(): torch.set_num_threads(n)
""",
    "default dtype": r"""
import torch
def read(y): return y * (3.0 if torch.get_default_dtype() is torch.float64 else 2.0)
def change(): torch.set_default_dtype(torch.float64)
def undo(): torch.set_default_dtype(torch.float32)
""",
    "default device": r"""
import torch
def read(y): return y * (3.0 if torch.get_default_device().type == 'meta' else 2.0)
def change(): torch.set_default_device('meta')
def undo(): torch.set_default_device(None)
""",
    "is_autocast_enabled": r"""
import torch
cm = torch.autocast('cpu', dtype=torch.bfloat16)
def read(y): return y.float() * (3.0 if torch.is_autocast_enabled('cpu') else 2.0)
def change(): cm.__enter__()
def undo(): cm.__exit__(None, None, None)
""",
    "anomaly mode": r"""
import torch
def read(y): return y * (3.0 if torch.is_anomaly_enabled() else 2.0)
def change(): torch.autograd.set_detect_anomaly(True)
def undo(): torch.autograd.set_detect_anomaly(False)
""",
    "is_inference_mode": r"""
import torch
cm = torch.inference_mode()
def read(y): return y * (3.0 if torch.is_inference_mode_enabled() else 2.0)
def change(): cm.__enter__()
def undo(): cm.__exit__(None, None, None)
""",
    "is_grad_enabled": r"""
import torch
def read(y): return y * (3.0 if torch.is_grad_enabled() else 2.0)
cm = torch.no_grad()
def change(): cm.__enter__()
def undo(): cm.__exit__(None, None, None)
""",
    "functools.partial keywords": r"""
import functools
def f(y, k): return y * k
p = functools.partial(f, k=2.0)
def read(y): return p(y)
def change(): p.keywords['k'] = 3.0
""",
    "partialmethod": r"""
import functools
class C:
    def f(self, k, y): return y * k
    g = functools.partialmethod(f, 2.0)
c = C()
def read(y): return c.g(y)
def change(): C.g = functools.partialmethod(C.f, 3.0)
""",
    "operator.attrgetter": r"""
import operator
class C: pass
c = C(); c.a = C(); c.a.b = 2.0
g = operator.attrgetter('a.b')
def read(y): return y * g(c)
def change(): c.a.b = 3.0
""",
    "operator.itemgetter": r"""
import operator
d = {'a': 2.0}
g = operator.itemgetter('a')
def read(y): return y * g(d)
def change(): d['a'] = 3.0
""",
    "operator.methodcaller": r"""
import operator
class C:
    def __init__(self): self.v = 2.0
    def m(self): return self.v
c = C()
g = operator.methodcaller('m')
def read(y): return y * g(c)
def change(): c.v = 3.0
""",
    "map over list": r"""
V = [2.0]
def f(v): return v * S
S = 1.0
def read(y): return y * sum(map(f, V))
def change():
    global S; S = 2.0
""",
    "sorted by key closure": r"""
def mk():
    sign = [1]
    return (lambda v: v * sign[0]), sign
key, sign = mk()
def read(y): return y * sorted([2.0, 3.0], key=key)[0]
def change(): sign[0] = -1
""",
    "globals() dict": r"""
V = 2.0
def read(y): return y * globals()['V']
def change():
    global V; V = 3.0
""",
    "vars(module)": r"""
import types
m = types.ModuleType('mm'); m.v = 2.0
def read(y): return y * vars(m)['v']
def change(): m.v = 3.0
""",
    "vars(obj)": r"""
class C: pass
c = C(); c.v = 2.0
def read(y): return y * vars(c)['v']
def change(): c.v = 3.0
""",
    "obj.__dict__ replaced": r"""
class C: pass
c = C(); c.v = 2.0
def read(y): return y * c.v
def change(): c.__dict__ = {'v': 3.0}
""",
    "obj.__class__ replaced": r"""
class A: v = 2.0
class B: v = 3.0
c = A()
def read(y): return y * c.v
def change(): c.__class__ = B
""",
    "class bases replaced": r"""
class A:
    def f(self): return 2.0
class B:
    def f(self): return 3.0
class C(A): pass
c = C()
def read(y): return y * c.f()
def change(): C.__bases__ = (B,)
""",
    "hasattr": r"""
class C: pass
c = C()
def read(y): return y * (3.0 if hasattr(c, 'flag') else 2.0)
def change(): c.flag = True
""",
    "hasattr on class": r"""
class C: pass
def read(y): return y * (3.0 if hasattr(C, 'flag') else 2.0)
def change(): C.flag = True
""",
    "getattr default on class": r"""
class C: pass
c = C()
def read(y): return y * getattr(c, 'flag', 2.0)
def change(): C.flag = 3.0
""",
    "getattr default on module": r"""
import types
m = types.ModuleType('mm2')
def read(y): return y * getattr(m, 'flag', 2.0)
def change(): m.flag = 3.0
""",
    "attribute absent, except": r"""
class C: pass
c = C()
def read(y):
    try: return y * c.flag
    except AttributeError: return y * 2.0
def change(): c.flag = 3.0
""",
    "class attribute absent, except": r"""
class C: pass
def read(y):
    try: return y * C.flag
    except AttributeError: return y * 2.0
def change(): C.flag = 3.0
""",
    "module attribute absent, except": r"""
import types
m = types.ModuleType('mm3')
def read(y):
    try: return y * m.flag
    except AttributeError: return y * 2.0
def change(): m.flag = 3.0
""",
    "name absent, except": r"""
def read(y):
    try: return y * MISSING
    except NameError: return y * 2.0
def change():
    global MISSING; MISSING = 3.0
""",
    "attribute deleted, class has default": r"""
class C: v = 3.0
c = C(); c.v = 2.0
def read(y): return y * c.v
def change(): del c.v
""",
    "instance shadows class attr": r"""
class C: v = 2.0
c = C()
def read(y): return y * c.v
def change(): c.v = 3.0
""",
    "subclass shadows": r"""
class A: v = 2.0
class B(A): pass
def read(y): return y * B.v
def change(): B.v = 3.0
""",
    "super() method": r"""
class A:
    def f(self): return 2.0
class B(A):
    def f(self): return super().f()
b = B()
def read(y): return y * b.f()
def change(): A.f = lambda self: 3.0
""",
    "object made in the call reads class attr": r"""
class C:
    k = 2.0
    def f(self): return self.k
def read(y): return y * C().f()
def change(): C.k = 3.0
""",
    "object made in the call, held in container": r"""
class C:
    k = 2.0
def read(y):
    cs = [C() for _ in range(2)]
    return y * cs[0].k
def change(): C.k = 3.0
""",
    "staticmethod replaced": r"""
class C:
    @staticmethod
    def f(): return 2.0
def read(y): return y * C.f()
def change(): C.f = staticmethod(lambda: 3.0)
""",
    "__call__ object": r"""
class C:
    def __init__(self): self.v = 2.0
    def __call__(self, y): return y * self.v
c = C()
def read(y): return c(y)
def change(): c.v = 3.0
""",
    "__index__/__float__ object": r"""
class C:
    def __init__(self): self.v = 2.0
    def __float__(self): return self.v
c = C()
def read(y): return y * float(c)
def change(): c.v = 3.0
""",
    "__rmul__ object": r"""
class C:
    def __init__(self): self.v = 2.0
    def __radd__(self, o): return o + self.v
c = C()
def read(y): return y * (1.0 + c)
def change(): c.v = 3.0
""",
    "__rmul__ replaced": r"""
class C:
    def __radd__(self, o): return o + 2.0
c = C()
def read(y): return y * (1.0 + c)
def change(): C.__radd__ = lambda s, o: o + 5.0
""",
    "__lt__ replaced": r"""
class C:
    def __lt__(self, o): return True
c = C()
def read(y): return y * (2.0 if c < 1 else 3.0)
def change(): C.__lt__ = lambda s, o: False
""",
    "__hash__ lookups": r"""
class C:
    def __hash__(self): return 1
    def __eq__(self, o): return isinstance(o, C)
d = {C(): 2.0}
c = C()
def read(y): return y * d.get(c, 3.0)
def change(): C.__eq__ = lambda s, o: False
""",
    "context manager object": r"""
class C:
    def __enter__(self): return self.v
    def __exit__(self, *a): pass
c = C(); c.v = 2.0
def read(y):
    with c as v: return y * v
def change(): c.v = 3.0
""",
    "contextlib.contextmanager": r"""
import contextlib
V = [2.0]
@contextlib.contextmanager
def cm(): yield V[0]
def read(y):
    with cm() as v: return y * v
def change(): V[0] = 3.0
""",
    "contextvar object inside": r"""
import contextvars
class C: pass
c = C(); c.v = 2.0
var = contextvars.ContextVar('v'); var.set(c)
def read(y): return y * var.get().v
def change(): c.v = 3.0
""",
    "contextvar default missing": r"""
import contextvars
var = contextvars.ContextVar('v2')
def read(y): return y * var.get(2.0)
def change(): var.set(3.0)
""",
    "threading.local subclass": r"""
import threading
class L(threading.local):
    v = 2.0
l = L()
def read(y): return y * l.v
def change(): l.v = 3.0
""",
    "threading.local absent": r"""
import threading
l = threading.local()
def read(y): return y * getattr(l, 'v', 2.0)
def change(): l.v = 3.0
""",
    "os.environ in": r"""
import os
def read(y): return y * (3.0 if 'CP_TEST_X' in os.environ else 2.0)
def change(): os.environ['CP_TEST_X'] = '1'
def undo(): os.environ.pop('CP_TEST_X')
""",
    "from os import environ": r"""
from os import environ
def read(y): return y * float(environ.get('CP_TEST_Y', '2'))
def change(): environ['CP_TEST_Y'] = '3'
def undo(): environ.pop('CP_TEST_Y')
""",
    "from os import getenv": r"""
from os import getenv, environ
def read(y): return y * float(getenv('CP_TEST_Z', '2'))
def change(): environ['CP_TEST_Z'] = '3'
def undo(): environ.pop('CP_TEST_Z')
""",
    "sys.flags-like: recursion limit": r"""
import sys
n = sys.getrecursionlimit()
def read(y): return y * (float(sys.getrecursionlimit() - n) + 2.0)
def change(): sys.setrecursionlimit(n + 1)
def undo(): sys.setrecursionlimit(n)
""",
    "warnings filters": r"""
import warnings
def read(y): return y * float(len(warnings.filters))
def change(): warnings.filters.append(warnings.filters[0])
def undo(): warnings.filters.pop()
""",
    "logging level": r"""
import logging
log = logging.getLogger('cp')
def read(y): return y * (3.0 if log.isEnabledFor(logging.DEBUG) else 2.0)
def change(): log.setLevel(logging.DEBUG)
def undo(): log.setLevel(logging.NOTSET)
""",
    "logging level attr": r"""
import logging
log = logging.getLogger('cp2'); log.setLevel(20)
def read(y): return y * float(log.level)
def change(): log.setLevel(10)
def undo(): log.setLevel(20)
""",
    "pathlib path attr": r"""
import pathlib
p = pathlib.Path('/a/b')
def read(y): return y * float(len(p.parts))
def change():
    global p; p = pathlib.Path('/a/b/c')
""",
    "configparser": r"""
import configparser
c = configparser.ConfigParser(); c['a'] = {'v': '2'}
def read(y): return y * c['a'].getfloat('v')
def change(): c['a']['v'] = '3'
""",
    "argparse Namespace": r"""
import argparse
ns = argparse.Namespace(v=2.0)
def read(y): return y * ns.v
def change(): ns.v = 3.0
""",
    "datetime replaced": r"""
import datetime
d = datetime.timedelta(seconds=2)
def read(y): return y * d.total_seconds()
def change():
    global d; d = datetime.timedelta(seconds=3)
""",
    "fractions": r"""
import fractions
f = fractions.Fraction(2)
def read(y): return y * float(f)
def change():
    global f; f = fractions.Fraction(3)
""",
    "closure through decorator class": r"""
class Deco:
    def __init__(self, f): self.f, self.k = f, 2.0
    def __call__(self, y): return self.f(y) * self.k
@Deco
def f(y): return y
def read(y): return f(y)
def change(): f.k = 3.0
""",
    "function attribute": r"""
def f(y): return y * f.k
f.k = 2.0
def read(y): return f(y)
def change(): f.k = 3.0
""",
    "nested closure nonlocal dict": r"""
def mk():
    s = {'k': 2.0}
    def g(y): return y * s['k']
    def outer(y): return (lambda z: g(z))(y)
    return outer, s
f, s = mk()
def read(y): return f(y)
def change(): s['k'] = 3.0
""",
    "bound method stored": r"""
class C:
    def __init__(self): self.v = 2.0
    def f(self, y): return y * self.v
c = C(); f = c.f
def read(y): return f(y)
def change(): c.v = 3.0
""",
    "callable list": r"""
class C:
    def __init__(self): self.v = 2.0
    def f(self, y): return y * self.v
c = C(); fs = [c.f]
def read(y):
    for f in fs: y = f(y)
    return y
def change(): c.v = 3.0
""",
    "callable list appended": r"""
fs = [lambda y: y * 2]
def read(y):
    for f in fs: y = f(y)
    return y
def change(): fs.append(lambda y: y * 3)
""",
    "isinstance with changed tuple": r"""
class B: pass
b = B()
kinds = [int]
def read(y): return y * (3.0 if isinstance(b, tuple(kinds)) else 2.0)
def change(): kinds.append(B)
""",
    "__instancecheck__": r"""
class M(type):
    def __instancecheck__(cls, o): return cls.flag
class A(metaclass=M): flag = False
def read(y): return y * (3.0 if isinstance(1.5, A) else 2.0)
def change(): A.flag = True
""",
    "annotations": r"""
class C: a: int = 1
def read(y): return y * float(len(C.__annotations__) + 1)
def change(): C.__annotations__['b'] = int
""",
    "class __dict__ iteration": r"""
class C: a = 1.0
def read(y): return y * float(sum(v for k, v in vars(C).items() if not k.startswith('_')) + 1)
def change(): C.b = 1.0
""",
    "dir()": r"""
class C: pass
c = C(); c.a = 1
def read(y): return y * float(len([n for n in dir(c) if not n.startswith('_')]))
def change(): c.b = 1
""",
    "len of object list": r"""
class C: pass
c = C(); c.items = [1, 2]
def read(y): return y * float(len(c.items))
def change(): c.items.append(3)
""",
    "dict order": r"""
d = {'a': 2.0, 'b': 3.0}
def read(y): return y * next(iter(d.values()))
def change(): d['a'] = d.pop('a')
""",
    "OrderedDict move_to_end": r"""
import collections
d = collections.OrderedDict(a=2.0, b=3.0)
def read(y): return y * next(iter(d.values()))
def change(): d.move_to_end('a')
""",
    "deque rotate": r"""
import collections
q = collections.deque([2.0, 3.0])
def read(y): return y * q[0]
def change(): q.rotate()
""",
    "heap / list sorted in place": r"""
L = [2.0, 1.0]
def read(y): return y * L[0]
def change(): L.sort()
""",
    "list replaced by slice": r"""
L = [2.0]
def read(y): return y * L[0]
def change(): L[:] = [3.0]
""",
    "tuple of lists": r"""
T = ([2.0],)
def read(y): return y * T[0][0]
def change(): T[0][0] = 3.0
""",
    "list of dict of list": r"""
T = [{'a': [2.0]}]
def read(y): return y * T[0]['a'][0]
def change(): T[0]['a'][0] = 3.0
""",
    "namedtuple of arrays": r"""
import collections, numpy as np
P = collections.namedtuple('P', 'a b')
p = P(np.array([2.0]), 1)
def read(y): return y * float(p.a[0])
def change(): p.a[0] = 3.0
""",
    "dict_values view": r"""
d = {'a': 2.0}
v = d.values()
def read(y): return y * sum(v)
def change(): d['a'] = 3.0
""",
    "string.Template": r"""
import string
t = string.Template('$a')
vals = {'a': '2'}
def read(y): return y * float(t.substitute(vals))
def change(): vals['a'] = '3'
""",
    "re pattern replaced": r"""
import re
p = re.compile('a')
def read(y): return y * (2.0 if p.match('abc') else 3.0)
def change():
    global p; p = re.compile('z')
""",
    "property on a class-level registry": r"""
class R:
    reg = {}
    @classmethod
    def get(cls, n): return cls.reg[n]
R.reg['f'] = lambda y: y * 2
def read(y): return R.get('f')(y)
def change(): R.reg['f'] = lambda y: y * 3
""",
    "__getattribute__ override": r"""
class C:
    def __getattribute__(self, n):
        return S[0] if n == 'v' else object.__getattribute__(self, n)
S = [2.0]
c = C()
def read(y): return y * c.v
def change(): S[0] = 3.0
""",
    "__init_subclass__/type()": r"""
C = type('C', (), {'v': 2.0})
def read(y): return y * C.v
def change():
    global C; C = type('C', (), {'v': 3.0})
""",
    "module __getattr__": r"""
import types
m = types.ModuleType('mg'); store = {'v': 2.0}
m.__getattr__ = lambda n: store[n]
def read(y): return y * m.v
def change(): store['v'] = 3.0
""",
    "module class swapped w property": r"""
import types, sys
class M(types.ModuleType):
    @property
    def v(self): return self._v
m = M('mp'); m._v = 2.0
def read(y): return y * m.v
def change(): m._v = 3.0
""",
    "large nested config tree": r"""
cfg = {'l%d' % i: {'x': [float(i)] * 5} for i in range(200)}
def read(y): return y * cfg['l150']['x'][3]
def change(): cfg['l150']['x'][3] = 9.0
""",
    "deep object graph via helper chain": r"""
class N:
    def __init__(self, d): self.n = N(d - 1) if d else None; self.v = 2.0
root = N(10)
def walk(n): return n.v if n.n is None else walk(n.n)
def read(y): return y * walk(root)
def change():
    n = root
    while n.n is not None: n = n.n
    n.v = 3.0
""",
    "loop over attribute chain locally": r"""
class N:
    def __init__(self, d): self.n = N(d - 1) if d else None; self.v = 2.0
root = N(10)
def read(y):
    n = root
    while n.n is not None: n = n.n
    return y * n.v
def change():
    n = root
    while n.n is not None: n = n.n
    n.v = 3.0
""",
    "pydantic-like model_fields via __dict__": r"""
class B:
    def __init__(self, **kw): self.__dict__.update(kw)
b = B(v=2.0)
def read(y): return y * b.__dict__['v']
def change(): b.__dict__['v'] = 3.0
""",
    "exec'd function text": r"""
V = 2.0
ns = {}
exec('def f(y, V): return y * V', ns)
def read(y): return ns['f'](y, V)
def change(): exec('def f(y, V): return y * V * 2', ns)
""",
    "eval of a string": r"""
V = 2.0
def read(y): return y * eval('V')
def change():
    global V; V = 3.0
""",
    "decimal context": r"""
import decimal
third = decimal.Decimal(1)
def read(y): return y * float(third / 3 * 3)
def change(): decimal.getcontext().prec = 1
def undo(): decimal.getcontext().prec = 28
""",
    "decimal context asked for": r"""
from decimal import getcontext
def read(y): return y * getcontext().prec
def change(): getcontext().prec = 5
def undo(): getcontext().prec = 28
""",
    "decimal class": r"""
from decimal import Decimal, getcontext
def read(y): return y * float(Decimal(2) / Decimal(3))
def change(): getcontext().prec = 1
def undo(): getcontext().prec = 28
""",
    "name of the thread": r"""
import threading
def read(y): return y * len(threading.current_thread().name)
before = threading.current_thread().name
def change(): threading.current_thread().name = before + "longer"
def undo(): threading.current_thread().name = before
""",
    "name of the thread, imported function": r"""
from threading import current_thread
def read(y): return y * (3.0 if current_thread().name == "other" else 2.0)
before = current_thread().name
def change(): current_thread().name = "other"
def undo(): current_thread().name = before
""",
    "class registered with an abstract one": r"""
import abc
class Kind(abc.ABC): pass
class Mine: pass
thing = Mine()
def read(y): return y * (3.0 if isinstance(thing, Kind) else 2.0)
def change(): Kind.register(Mine)
""",
    "class registered with one of collections.abc": r"""
from collections.abc import Mapping
class Mine: pass
def read(y): return y * (3.0 if issubclass(Mine, Mapping) else 2.0)
def change(): Mapping.register(Mine)
""",
    "new attribute of a function, by getattr": r"""
def helper(): return getattr(helper, "scale", 2.0)
def read(y): return y * helper()
def change(): helper.scale = 3.0
def undo(): del helper.scale
""",
    "new attribute of a function, by hasattr": r"""
def helper(): return 1.0
def read(y): return y * (3.0 if hasattr(helper, "flag") else 2.0)
def change(): helper.flag = True
def undo(): del helper.flag
""",
}
