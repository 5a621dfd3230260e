from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("protocol_version", "name", "first_env_id", "num_envs", "total_num_envs", "step_layout", "action_layout", "previous_lease")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENV_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NUM_ENVS_FIELD_NUMBER: _ClassVar[int]
    STEP_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ACTION_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_LEASE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    name: str
    first_env_id: int
    num_envs: int
    total_num_envs: int
    step_layout: str
    action_layout: str
    previous_lease: str
    def __init__(self, protocol_version: _Optional[int] = ..., name: _Optional[str] = ..., first_env_id: _Optional[int] = ..., num_envs: _Optional[int] = ..., total_num_envs: _Optional[int] = ..., step_layout: _Optional[str] = ..., action_layout: _Optional[str] = ..., previous_lease: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("description", "step_layout", "action_layout", "lease")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    STEP_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ACTION_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    description: str
    step_layout: str
    action_layout: str
    lease: str
    def __init__(self, description: _Optional[str] = ..., step_layout: _Optional[str] = ..., action_layout: _Optional[str] = ..., lease: _Optional[str] = ...) -> None: ...

class ActRequest(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: bytes
    def __init__(self, columns: _Optional[bytes] = ...) -> None: ...

class ActResponse(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: bytes
    def __init__(self, columns: _Optional[bytes] = ...) -> None: ...
